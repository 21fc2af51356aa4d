"""How figures are named and written for a person, and what the words mean."""

from __future__ import annotations

from thumbwheel.records import Figure

NAMES = {
    "win_rate": "Win rate",
    "win_rate_bootstrap": "Win rate, resampled by prompt",
    "win_share": "Votes for the new answer",
    "tie_share": "Ties",
    "loss_share": "Votes for the parent's answer",
    "side_a_share": "Votes for side A",
    "unvoted": "Rows without a vote",
    "nats_per_token_change": "Change of likelihood per token",
    "nats_per_token": "Likelihood per token under the reference",
    "repetition_rise": "Rise of repetition",
    "repetition": "Repetition",
    "looping": "Answers that loop",
    "length_ratio": "Length against the parent's",
    "length": "Length",
    "empty": "Empty answers",
    "finished": "Answers that ended by themselves",
    "entropy": "Entropy per token",
    "kl_per_response": "Distance from the reference (KL per response)",
    "reward": "Reward",
    "distinct_1": "Different words",
    "distinct_2": "Different word pairs",
    "distinct_3": "Different word triples",
    "reward_accuracy": "Reward model",
    "reward_accuracy_bootstrap": "Reward model, resampled by prompt",
    "longer_accuracy": "Pick the longer answer",
    "reward_over_longer": "Reward model over the longer answer",
    "reward_accuracy_length_balanced": "Reward model, length-balanced",
    "reward_accuracy_length_controlled": "Reward model, at equal length",
    "reward_auc": "AUC",
    "reward_brier": "Brier score",
    "reward_log_loss": "Log loss",
    "reward_ece": "Calibration error (ECE)",
    "tie_labels": "Pairs that people called a tie",
    "unscored": "Pairs without a score",
    "human_agreement": "Two people agree",
    "human_ceiling": "Human ceiling",
    "grad_norm": "Gradient norm, before clipping",
    "score": "Mean score",
    "kl": "KL estimate, nats",
}

GLOSSARY = (
    ("policy", "the model that answers. The new one is measured against its parent, the one it was trained from."),
    ("held-out prompt", "a prompt that nothing was trained on. All comparisons here are on held-out prompts."),
    ("blind", "the judge sees two answers on shuffled sides, and never which policy wrote which."),
    ("win rate", "how often the new answer is preferred; a tie counts half. At 50% the two are alike."),
    ("interval", "where the true figure lies, at the confidence level of the evaluation (95% unless set otherwise)."),
    ("reference", "the frozen model that keeps the language whole: what it finds unlikely has drifted from it."),
    ("nats per token", "mean log-probability of a token. A fall of 0.69 means every token became half as likely."),
    ("KL", "how far the policy has moved from the reference, in nats: the mean log-ratio of the two on the policy's answers."),
    ("repetition", "the share of three-word phrases that occur more than twice in the same answer."),
    ("gate", "a condition for release. What was not measured does not pass."),
    ("preference", "two answers to one prompt, and which one people chose; the other is the rejected one."),
    ("margin", "how much more the new policy favours the chosen answer over the rejected one than the reference does."),
    ("reward model", "a model that scores answers, trained to put the chosen ones first."),
    ("AUC", "how often a better pair gets the higher score gap; 50% is chance."),
    ("Brier, log loss, ECE", "three measures of whether stated probabilities come true; lower is better."),
    ("human ceiling", "the accuracy that a perfect model would show, since people disagree with one another."),
    ("simulated users", "a program with a hidden preference plays the users. It tests the wheel, not what people like."),
)  # fmt: skip


def name_of(figure: str) -> str:
    """The figure's name for people; an unknown one in words."""
    return NAMES.get(figure, figure.replace("_", " ").capitalize())


def number(value: float | None, unit: str, *, signed: bool = False) -> str:
    """A value with its unit, as short as it may be: 68.5%, −0.07, 61.2 tokens, 1.10×. A dash where it is unknown.

    >>> number(0.6852, "share"), number(-0.071, "nats per token", signed=True), number(1.1, "times")
    ('68.5%', '−0.07', '1.10×')
    """
    if value is None:
        return "–"
    plus = "+" if signed and value > 0 else ""
    if unit in ("share", "points"):
        text = f"{value * 100:{plus}.1f}" + ("%" if unit == "share" else "")
    elif unit == "times":
        text = f"{value:.2f}×"
    elif unit in ("rows", "pairs"):
        text = f"{value:,.0f}"
    elif unit == "tokens" or (unit == "nats" and abs(value) >= 10):
        text = f"{value:{plus},.1f}"
    else:
        text = f"{value:{plus}.2f}" if abs(value) < 1000 else f"{value:{plus}.3g}"
    if not any(digit in text for digit in "123456789"):
        text = text.lstrip("+-")
    return text.replace("-", "−")


def span(figure: Figure) -> str:
    """The interval of a figure, or an empty text: "55.1 to 79.4%"."""
    if figure.low is None or figure.high is None:
        return ""
    low, high = number(figure.low, figure.unit), number(figure.high, figure.unit)
    for tail in ("%", "×"):
        if low.endswith(tail) and high.endswith(tail):
            low = low.removesuffix(tail)
    return f"{low} to {high}"


def with_span(figure: Figure | None) -> str:
    """A figure with its interval in brackets."""
    if figure is None:
        return "–"
    inside = span(figure)
    return number(figure.value, figure.unit) + (f" ({inside})" if inside else "")


def duration(seconds: float) -> str:
    """Seconds for a person: 42 s, 5 min 12 s, 2 h 4 min.

    >>> duration(0.4), duration(312), duration(7440)
    ('0.4 s', '5 min 12 s', '2 h 4 min')
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
