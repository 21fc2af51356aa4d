"""P7: the page of a sweep says what was picked, why, and what each point earned; also where there is little to say."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from thumbwheel.errors import StoreError
from thumbwheel.evals.pages import Next
from thumbwheel.evals.sweep_page import Sweep, spot, with_error, write


@dataclass(frozen=True)
class Point:
    value: float
    reward: float
    error: float = 0.1
    kl_per_token_nats: float = 0.2
    kl_per_response_nats: float = 4.0
    answers: int = 50


REFERENCE = Point(0.0, 0.5, 0.1, 0.0, 0.0)
POINTS = (Point(0.01, 3.0, 0.1, 0.5, 20.0), Point(0.1, 2.0, 0.1, 0.12345, 6.0), Point(0.5, 1.0, 0.1, 0.02, 1.0))


def sweep(picked: float | None = 0.1, points: tuple[Point, ...] = POINTS, **more: object) -> Sweep:
    return Sweep(points, REFERENCE, picked, "because <b>so</b>", "β", 0.5, **more)  # type: ignore[arg-type]


def text_of(html: str) -> str:
    body = html[html.index("<main>") :]
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", body))


def test_the_page_tells_what_was_picked_and_why(tmp_path: Path) -> None:
    """P7: 2.00 ± 1.96 × 0.1; over the reference +1.50 ± 1.96 √(0.1² + 0.1²) = 0.28."""
    made = sweep(
        next=[Next("Talk with it:", "thumbwheel chat")], settings=[("online.lr", "0.1")], links=[(0.1, "0.1/curves.html")],
    )  # fmt: skip
    html = write(made, tmp_path).read_text(encoding="utf-8")
    text = text_of(html)
    assert "β = 0.1 is picked" in text
    assert "2.00 ± 0.20 +1.50 ± 0.28 0.123 6 50 picked" in text
    assert "3.00 ± 0.20 +2.50 ± 0.28 0.5 20 50 too far" in text  # 0.5 is not below 0.5
    assert "reference 0.50 ± 0.20" in text
    assert "thumbwheel chat" in text
    assert 'href="0.1/curves.html"' in html
    assert "&lt;b&gt;so" in html
    assert html.count('class="ring s2"') == 1
    for never in ("<script", "<link", "<img", "@import", "url("):
        assert never not in html


def test_nothing_picked_is_told_as_such(tmp_path: Path) -> None:
    html = write(sweep(picked=None), tmp_path).read_text(encoding="utf-8")
    assert "Nothing is picked" in text_of(html)
    assert 'class="ring' not in html
    assert "verdict hold" in html
    assert "None: every setting has its default." in html


@pytest.mark.parametrize(
    ("points", "said"),
    [
        ((), "reference 0.50 ± 0.20"),
        ((Point(0.1, math.nan, math.nan, 0.2, 4.0, 0),), "0.1 – – 0.2 4 0"),
        ((Point(0.1, 1.0, math.inf, math.nan, math.nan, 1),), "0.1 1.00 +0.50 – – 1 too far"),
    ],
    ids=["no point", "no reward", "nothing known"],
)
def test_what_is_not_known_is_a_dash(points: tuple[Point, ...], said: str, tmp_path: Path) -> None:
    """Unknown is not zero."""
    html = write(sweep(None, points), tmp_path).read_text(encoding="utf-8")
    assert said in text_of(html)
    assert "nan" not in html
    assert "inf " not in text_of(html)


def test_colours_tell_points_apart() -> None:
    made = sweep()
    assert [spot(point, made).style for point in (REFERENCE, *POINTS)] == ["s5", "s1", "s2", "s0"]
    assert spot(POINTS[1], made).reach == pytest.approx(0.196, abs=1e-4)


def test_errors_are_written_beside_their_value() -> None:
    assert with_error(1.234, 0.046) == "1.23 ± 0.05"
    assert with_error(-1.0, math.inf, signed=True) == "−1.00"
    assert with_error(math.nan, 0.1) == "–"


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(StoreError, match=r"sweep\.html"):
        write(sweep(), tmp_path / "file")


@pytest.mark.browser
@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (390, "dark")])
def test_the_page_fits_and_runs_nothing(browser: Any, tmp_path: Path, width: int, scheme: str) -> None:
    """A phone need not scroll sideways, with a long command and settings of one long word."""
    made = sweep(
        next=[Next("<script>document.title = 1</script>", "thumbwheel sweep " + "-s online.lr=1 " * 40)],
        settings=[("online.reward.terms", "x" * 500)], about="y" * 200,
    )  # fmt: skip
    opened = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    asked: list[str] = []
    opened.on("request", lambda request: asked.append(request.url))
    path = write(made, tmp_path)
    opened.goto(path.as_uri())
    assert opened.title() == "Sweep: β = 0.1 is picked"
    assert asked == [path.as_uri()]
    assert opened.locator("script").count() == 0
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    assert opened.locator("svg .ring").is_visible()
    opened.close()
