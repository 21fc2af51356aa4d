"""The page of a sweep: the reward-KL frontier with the point that was picked, why, every point's figures, what to do next.

write(Sweep(points, reference, picked=0.1, why="…", knob="β", …), Path("sweep"))      # sweep/sweep.html
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from thumbwheel.evals.pages import Next, put, render
from thumbwheel.evals.plots import Spot, frontier
from thumbwheel.evals.wording import number

HTML = "sweep.html"
DEVIATIONS = 1.959964  # of a 95% interval


class Point(Protocol):
    """A policy on validation prompts; `error` is the standard error of `reward`."""

    @property
    def value(self) -> float: ...
    @property
    def reward(self) -> float: ...
    @property
    def error(self) -> float: ...
    @property
    def kl_per_token_nats(self) -> float: ...
    @property
    def kl_per_response_nats(self) -> float: ...
    @property
    def answers(self) -> int: ...


@dataclass(frozen=True)
class Sweep:
    """All that the page shows. `knob` names what was varied; `links` leads from a value to a page beside this one."""

    points: Sequence[Point]
    reference: Point
    picked: float | None
    why: str
    knob: str
    max_kl_per_token_nats: float
    about: str = ""
    says: str = ""
    next: Sequence[Next] = ()
    settings: Sequence[tuple[str, str]] = ()
    links: Sequence[tuple[float, str]] = ()


def write(sweep: Sweep, folder: Path) -> Path:
    """Write `folder`/sweep.html, whole or not at all. Raises StoreError where the folder cannot be written."""
    picked = sweep.picked is not None
    page = render(
        "sweep.html.j2",
        picked=picked,
        headline=f"{sweep.knob} = {sweep.picked:g} is picked" if picked else "Nothing is picked",
        about=sweep.about,
        says=sweep.says,
        why=sweep.why,
        knob=sweep.knob,
        plot=frontier(
            [spot(point, sweep) for point in (sweep.reference, *sweep.points)],
            x_label="KL to the reference, nats a response",
            label=f"Reward against KL, a point a {sweep.knob}",
        ),
        key=_key(sweep),
        rows=[_row(point, sweep) for point in (sweep.reference, *sweep.points)],
        rule=(
            f"The rule: of the points under {sweep.max_kl_per_token_nats:g} nats a token whose reward is above the reference's "
            "by more than two standard errors of the difference, the one with the largest reward; of those within one "
            "standard error of it, the one nearest to the reference."
        ),
        next=sweep.next,
        settings=sweep.settings,
    )
    return put(folder / HTML, page)


def spot(point: Point, sweep: Sweep) -> Spot:
    """Where a point stands on the plot, with its 95% interval."""
    reach = DEVIATIONS * point.error
    if point is sweep.reference:
        return Spot("reference", point.kl_per_response_nats, point.reward, reach, "s5")
    style = "s2" if point.value == sweep.picked else "s1" if _far(point, sweep) else "s0"
    return Spot(f"{point.value:g}", point.kl_per_response_nats, point.reward, reach, style, ringed=style == "s2")


def _far(point: Point, sweep: Sweep) -> bool:
    return not point.kl_per_token_nats < sweep.max_kl_per_token_nats


def _key(sweep: Sweep) -> list[tuple[str, str]]:
    """The colours that are there, and what they mean."""
    names = {
        "s2": "picked",
        "s0": "tried",
        "s1": f"at {sweep.max_kl_per_token_nats:g} nats a token or beyond",
        "s5": "reference",
    }
    drawn = [spot(point, sweep) for point in (sweep.reference, *sweep.points)]
    there = {one.style for one in drawn if math.isfinite(one.x) and math.isfinite(one.y)}
    return [(style, name) for style, name in names.items() if style in there]


def _row(point: Point, sweep: Sweep) -> dict[str, Any]:
    """A line of the table, in text."""
    reference = point is sweep.reference
    picked = not reference and point.value == sweep.picked
    far = not reference and _far(point, sweep)
    gain = point.reward - sweep.reference.reward
    return {
        "name": "reference" if reference else f"{point.value:g}",
        "link": "" if reference else dict(sweep.links).get(point.value, ""),
        "reward": with_error(point.reward, DEVIATIONS * point.error),
        "gain": "" if reference else with_error(gain, DEVIATIONS * math.hypot(point.error, sweep.reference.error), signed=True),
        "per_token": _known(point.kl_per_token_nats),
        "per_response": _known(point.kl_per_response_nats),
        "answers": f"{point.answers:,}",
        "said": "picked" if picked else "too far" if far else "",
        "pill": "yes" if picked else "no",
    }  # fmt: skip


def with_error(value: float, reach: float, *, signed: bool = False) -> str:
    """A value with its interval's half width: "1.23 ± 0.04"; a dash where it is unknown."""
    if not math.isfinite(value):
        return "–"
    return number(value, "", signed=signed) + (f" ± {number(reach, '')}" if math.isfinite(reach) else "")


def _known(value: float) -> str:
    """Three figures, so that a KL of thousandths is none of nought."""
    return f"{value:.3g}".replace("-", "−") if math.isfinite(value) else "–"
