"""Curves of a training run: its metric rows in, plots for a page out, a panel a figure.

    training({"Policy update": rows})["stages"][0]["panels"]    # each with title, plot and key

`rows` are those of metrics.jsonl. The reward of a run from fresh answers comes first, each of its terms with a plot of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from thumbwheel.evals.plots import Series, lines
from thumbwheel.evals.wording import name_of, number

MetricRows = Sequence[Mapping[str, Any]]

# Plots of a run from fresh answers, in this order; reward terms stand behind the reward. A run is one where it logs ONLINE.
ONLINE = "kl_per_response_nats"
ONLINE_PANELS: tuple[tuple[str, dict[str, str]], ...] = (
    ("KL to the reference, nats a response", {"kl_per_response_nats": ""}),
    ("KL to the reference, nats a token", {"kl_per_token_nats": ""}),
    ("β, the pull to the reference", {"coefficient": ""}),
    ("Entropy, nats a token", {"entropy": ""}),
    ("Length of answers, tokens", {"length": ""}),
    ("Share of repeated 3-grams", {"repetition": ""}),
    ("Share of answers that ended by themselves", {"ended_share": ""}),
    (
        "Prompts whose answers all earned the same",
        {"flat_groups": "all", "too_easy": "too easy", "too_hard": "too hard"},
    ),
    ("Spread of rewards, deviation", {"reward_std": ""}),
    ("Share of tokens whose ratio was clipped", {"clipped_share": ""}),
    ("New against old policy, nats a token", {"update_kl": ""}),
    ("Ratio of new to old policy", {"ratio": ""}),
    ("Sampler against trainer, nats a token", {"engine_gap_nats": ""}),
    ("Answers left out of the update", {"left_out": "all", "unscored": "without a reward"}),
    ("Prompts without room for an answer", {"no_room": ""}),
    ("Updates left out for their KL", {"stopped_early": ""}),
    ("Sampled tokens a second", {"tokens_per_s": ""}),
)
# Nothing to see where nothing happened: plots that are left out while all their values are this small.
QUIET = {"unscored", "stopped_early", "engine_gap_nats", "no_room", "loss"}
NOTHING = 1e-5
# Of the update, and no terms of the reward.
ALSO_ONLINE = frozenset(["surrogate", "value_loss", "entropy_bonus", "lm_loss", "grad_norm"])

# Plots of a training run, in this order: title, metrics that share it, each with its name there. A metric that is not named
# here has a plot of its own. Held-out figures ("heldout_…") join those of the training rows.
PANELS: tuple[tuple[str, dict[str, str]], ...] = (
    ("Loss", {"loss": ""}),
    ("Margin", {"margin": ""}),
    ("Gap of scores", {"gap": ""}),
    ("Accuracy on pairs", {"accuracy": ""}),
    ("Implicit reward", {"chosen_reward": "chosen", "rejected_reward": "rejected"}),
    ("Implicit reward of thumbs", {"liked_reward": "liked", "disliked_reward": "disliked"}),
    ("Chosen answers against the reference, nats", {"chosen_logp_change": ""}),
    ("Log-probability of answers, nats", {"chosen_logp": "chosen", "rejected_logp": "rejected"}),
)
NO_PANEL = {"step", "epoch", "tokens", "lr", "seconds"}
HELD_OUT = "heldout_"
SMALL_FALL_NATS = 0.05


def training(curves: Mapping[str, MetricRows]) -> dict[str, Any] | None:
    """Plots of each stage's metrics, and a word on falling log-probabilities. None where nothing was logged."""
    stages, notes = [], []
    for stage, rows in curves.items():
        found = panels(rows)
        if found:
            stages.append({"name": stage, "panels": found})
        note = falling_note(rows)
        if note:
            notes.append(f"{note} The language gate above says whether this did harm.")
    return {"stages": stages, "notes": notes} if stages else None


def panels(rows: MetricRows) -> list[dict[str, Any]]:
    """A plot a figure that was logged: {"title", "plot" (SVG), "key" (names of its lines)}. [] where nothing was."""
    made = []
    turn = "iteration" if ONLINE in _logged(rows) else "step"
    for title, several in _titled(rows):
        series = [
            _series(kind + key, rows, ", ".join(part for part in (name, told) if part))
            for key, name in several.items()
            for kind, told in (("", "" if name else "training"), (HELD_OUT, "held out"))
        ]
        series = [one for one in series if one.y]
        if QUIET & several.keys() and all(abs(value) < NOTHING for one in series for value in one.y):
            continue
        plot = lines(series, x_label=turn, label=f"{title}, a point a training {turn}")
        if plot:
            made.append({"title": title, "plot": plot, "key": [one.name for one in series]})
    return made


def term_keys(rows: MetricRows) -> list[str]:
    """The keys of the reward's terms in the rows of a run from fresh answers: all that are no figure of the run itself."""
    known = {key for _, several in (*ONLINE_PANELS, *PANELS) for key in several} | NO_PANEL | ALSO_ONLINE | {"reward"}
    return [key for key in _logged(rows) if key not in known]


def _logged(rows: MetricRows) -> list[str]:
    return list(dict.fromkeys(key.removeprefix(HELD_OUT) for row in rows for key in row))


def _titled(rows: MetricRows) -> list[tuple[str, dict[str, str]]]:
    """Every panel that the rows may fill, in the order of the page."""
    logged = _logged(rows)
    if ONLINE not in logged:
        named = {key for _, several in PANELS for key in several} | NO_PANEL
        return [*PANELS, *((name_of(key), {key: ""}) for key in logged if key not in named)]
    return [
        ("Reward", {"reward": ""}),
        *((f"Reward term: {key.removeprefix('term_').replace('_', ' ')}", {key: ""}) for key in term_keys(rows)),
        *ONLINE_PANELS,
        *PANELS,
        *((name_of(key), {key: ""}) for key in logged if key in ALSO_ONLINE),
    ]


def _series(key: str, rows: MetricRows, name: str = "") -> Series:
    step = [row["step"] if _is_number(row.get("step")) else i for i, row in enumerate(rows)]
    points = [(float(x), float(row[key])) for x, row in zip(step, rows, strict=True) if _is_number(row.get(key))]
    return Series(name, [x for x, _ in points], [y for _, y in points])


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def falling_note(rows: MetricRows) -> str:
    """A sentence where the chosen answers became less likely than under the reference, else an empty text.

    Preference losses only ask for a gap, which also opens when both answers become less likely and the rejected one more
    so (Rafailov et al. 2024, "From r to Q*", sec. 5). Reads `chosen_logp_change` over the last tenth of the steps; without
    a reference, `chosen_logp` of the last tenth against the first.
    """
    change, chosen = _series("chosen_logp_change", rows).y, _series("chosen_logp", rows).y
    if change:
        fall = -_mean(change[-max(1, len(change) // 10) :])
    elif len(chosen) > 1:
        tenth = max(1, len(chosen) // 10)
        fall = _mean(chosen[:tenth]) - _mean(chosen[-tenth:])
    else:
        return ""
    if not fall > SMALL_FALL_NATS:
        return ""
    return (
        f"The chosen answers became less likely during training, by {number(fall, 'nats')} nats an answer. Preference losses "
        "ask for a gap only, and may open it by making both answers less likely."
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
