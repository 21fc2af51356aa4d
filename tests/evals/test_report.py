"""The report: strict JSON with flat headline keys, and a page that a person reads and a hostile model cannot touch."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from thumbwheel.config import EvalSettings
from thumbwheel.errors import NotFound, RecordError, StoreError
from thumbwheel.evals.curves import falling_note, training
from thumbwheel.evals.evidence import kind_of
from thumbwheel.evals.report import SampleRow, read, write
from thumbwheel.evals.reward import ScoredPairs, reward_figures
from thumbwheel.evals.wording import duration, number, span
from thumbwheel.records import Figure, Gate, Message, Prompt, Report
from thumbwheel.signals.accounts import Account

HOSTILE = "\"'><script>document.title='PWNED'</script><img src=x onerror=\"document.title='PWNED'\"></style></main>"
FIGURES = (
    Figure(name="win_rate", value=0.68, low=0.55, high=0.79, n=54, unit="share", note="judge: rule (simulated)"),
    Figure(name="win_share", value=0.66, n=54, unit="share"),
    Figure(name="tie_share", value=0.04, n=54, unit="share"),
    Figure(name="loss_share", value=0.30, n=54, unit="share"),
    Figure(name="nats_per_token_change", value=-0.07, low=-0.12, high=-0.01, n=54, unit="nats per token"),
    Figure(name="repetition_rise", value=0.0, n=54, unit="share"),
    Figure(name="length_ratio", value=1.1, n=54, unit="times"),
)
PASSED = (Gate(name="win_rate", passed=True, value=0.68, bound=0.5, why="Passed: the new policy won 68.0%."),)
FAILED = (Gate(name="language", passed=False, value=-0.61, bound=-0.25, why="Held: the language is breaking."),)


def prompt(text: str) -> Prompt:
    return (Message(role="user", content=text),)


def report(**changed: Any) -> Report:
    values: dict[str, Any] = {
        "id": "r1", "policy": "v2", "parent": "v1", "verdict": "promote", "figures": FIGURES, "gates": PASSED,
        "seed": 7, "seconds": 312.4, "at": datetime(2026, 1, 31, 12, tzinfo=UTC), "details": {"judge": "rule"},
    }  # fmt: skip
    return Report(**{**values, **changed})


def page(folder: Path, made: Report | None = None, **more: Any) -> str:
    return write(made or report(), folder=folder, **more)[0].read_text(encoding="utf-8")


def loaded(folder: Path) -> dict[str, Any]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    found: dict[str, Any] = json.loads((folder / "report.json").read_text(encoding="utf-8"), parse_constant=refuse)
    return found


# ------------------------------------------------------------------ JSON


def test_the_headline_is_flat(tmp_path: Path) -> None:
    """E7: the keys that a script looks for, on top."""
    html, path = write(report(simulated=True), folder=tmp_path / "deep" / "er")
    assert (html.name, path.name) == ("report.html", "report.json")
    found = loaded(tmp_path / "deep" / "er")
    expected = {
        "verdict": "promote", "win_rate": 0.68, "win_rate_low": 0.55, "win_rate_high": 0.79,
        "nats_per_token_change": -0.07, "seconds": 312.4, "seed": 7, "simulated": True, "policy": "v2", "parent": "v1",
    }  # fmt: skip
    assert {key: found[key] for key in expected} == expected
    assert {"figures", "gates", "details"} <= found.keys()
    assert found["details"]["judge"] == "rule"


def test_unknown_is_null(tmp_path: Path) -> None:
    """Unknown is not zero: no figures at all."""
    write(report(figures=(), verdict="hold", gates=()), folder=tmp_path)
    found = loaded(tmp_path)
    for key in ("win_rate", "win_rate_low", "win_rate_high", "nats_per_token_change"):
        assert found[key] is None


def test_a_written_report_reads_back(tmp_path: Path) -> None:
    """E7: for the history of later rounds."""
    _, path = write(report(), folder=tmp_path)
    assert read(path) == report()
    with pytest.raises(NotFound):
        read(tmp_path / "gone.json")
    for broken in ("", "[]", "{}", '{"id": 1}', "\xff"):
        (tmp_path / "bad.json").write_text(broken, encoding="latin-1")
        with pytest.raises(RecordError, match="not a report"):
            read(tmp_path / "bad.json")


def test_writing_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    """Reproducible: no clock, no random ids."""
    everything = full()
    one = [path.read_bytes() for path in write(report(), folder=tmp_path / "a", **everything)]
    other = [path.read_bytes() for path in write(report(), folder=tmp_path / "b", **everything)]
    assert one == other
    assert not list((tmp_path / "a").glob(".*"))


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """Bad input: a file stands where the folder should be; nothing else is touched."""
    (tmp_path / "build").write_text("mine", encoding="utf-8")
    with pytest.raises(StoreError, match="cannot be written to"):
        write(report(), folder=tmp_path / "build")
    assert (tmp_path / "build").read_text(encoding="utf-8") == "mine"


# ------------------------------------------------------------------ the page


def full() -> dict[str, Any]:
    """Every argument of `write`, with hostile text wherever text can come from outside."""
    steps: list[dict[str, Any]] = [
        {"step": i, "loss": 0.7 - i / 100, "chosen_logp_change": -i / 10, HOSTILE: float(i)} for i in range(1, 51)
    ]
    steps.append({"step": 50, "heldout_loss": 0.5})
    pairs = ScoredPairs(
        gap=[1.0, -1.0, 2.0, 0.5], label=[1, 1, 1, 0.5], prompts=list("abcd"), length_gap=[1, -1, 2, 1],
        slices={HOSTILE: [HOSTILE, "x", "x", "x"]},
    )  # fmt: skip
    return {
        "samples": [
            SampleRow(prompt(HOSTILE), HOSTILE, "**won**", 1.0),
            SampleRow((*prompt("你好"), Message(role="assistant", content="مرحبا")), "", "<script>x</script>", None),
            SampleRow(prompt("🚀"), "x" * 50_000, "\ud83d\x00", 0.0),
            SampleRow(prompt("tie"), "same", "same", 0.5),
        ],
        "curves": {HOSTILE: steps},
        "accounts": {
            HOSTILE: Account(
                read=10, kept=6, dropped=Counter({HOSTILE: 3}), unscored=1, ties=2, notes=Counter({HOSTILE: 1})
            ),
            "plain": f"rows in 4 {HOSTILE}",
        },
        "reward": reward_figures(pairs, settings=EvalSettings(bootstrap_samples=50), seed=0),
        "feedback": {HOSTILE: {"person": 3, "simulated": 4}},
        "lineage": {HOSTILE: HOSTILE},
        "history": [report(policy=HOSTILE[:200], parent="v0")],
    }


def test_promoted_says_so(tmp_path: Path) -> None:
    """E7: the verdict, the figure with its interval, and no banner of simulated users where there are none."""
    html = page(tmp_path)
    assert "<h1>Promoted</h1>" in html
    assert "68.0% (55.0 to 79.0%)" in html
    assert "SIMULATED USERS" not in html


def test_held_gives_the_reasons(tmp_path: Path) -> None:
    """E7: each failed gate's sentence in the banner."""
    html = page(tmp_path, report(verdict="hold", gates=(*PASSED, *FAILED), simulated=True))
    assert "<h1>Held back</h1>" in html
    assert "<li>The language is breaking.</li>" in html
    assert "Held back by 1 of 2 gates: language." in html
    assert "SIMULATED USERS" in html


def test_nothing_given_is_nothing_shown(tmp_path: Path) -> None:
    """E7: no figures, no gates, no samples: still a page, and it says what is missing."""
    html = page(tmp_path, report(figures=(), gates=(), verdict="hold"))
    assert "No gate was asked, so nothing is known to be safe." in html
    assert "No answers were kept for this report." in html
    for absent in ("How the training went", "The reward model", "Where the data went", "Is it better?</h2>"):
        assert absent not in html


def test_everything_given_is_shown(tmp_path: Path) -> None:
    """E7: samples with their votes, training, reward model, data, feedback, lineage, history."""
    html = page(tmp_path, **full())
    for there in (
        "All 4", "New better 1", "Parent better 1", "Tie 1", "No vote 1", "<strong>won</strong>", "(an empty answer)",
        "How the training went", "The chosen answers became less likely", "Agreement with people", "Pick the longer answer",
        "Where the data went", "10 rows in", "The feedback behind it", "Where it comes from", "held-out prompt", "你好", "مرحبا",
    ):  # fmt: skip
        assert there in html, there
    assert "38,000 more characters are not shown" in html


def test_accounts_as_json_keeps_them(tmp_path: Path) -> None:
    """S3: an account that went through a stage's file is drawn like the account itself."""
    account = Account(read=5, kept=3, dropped=Counter({"empty edit": 1}), unscored=1)
    kept = json.loads(json.dumps(vars(account)))
    assert page(tmp_path / "a", accounts={"pairs": kept}) == page(tmp_path / "b", accounts={"pairs": account})
    assert loaded(tmp_path / "a")["details"]["accounts"] == {
        "pairs": "rows in 5, kept 3, dropped 1 (empty edit 1), unscored 1"
    }


def test_the_page_loads_nothing(tmp_path: Path) -> None:
    """E7: works without network: no link, script, style sheet, picture or font from anywhere; its own policy forbids them."""
    html = page(tmp_path, **full())
    assert "default-src 'none'" in html
    for never in ("<script", "<link", "<img", "@import", "url(", "<iframe"):
        assert never not in html, never
    assert html.count(" href=") == html.count(' href="#')


def test_only_so_many_samples_are_shown(tmp_path: Path) -> None:
    """E7: and it says so."""
    html = page(tmp_path, samples=[SampleRow(prompt(f"q{i}"), "a", "b", 1.0) for i in range(9)], max_samples=4)
    assert "The first 4 of 9 answers" in html
    assert html.count('class="card pair won"') == 4


@pytest.mark.parametrize(
    ("vote", "kind"), [(1.0, "won"), (0.51, "won"), (0.5, "tie"), (0.2, "lost"), (None, "none"), (float("nan"), "none")]
)
def test_votes_by_kind(vote: float | None, kind: str) -> None:
    """E2."""
    assert kind_of(vote) == kind


def test_a_falling_chosen_log_probability_is_called_out() -> None:
    """P2: against the reference where logged, else last against first; a rise, or nothing logged, is silent."""
    fell = [{"step": i, "chosen_logp_change": -0.1 * i, "chosen_logp": -50.0} for i in range(1, 21)]
    assert "by 1.95 nats an answer" in falling_note(fell)
    assert "by 10.0 nats an answer" in falling_note([{"chosen_logp": -60.0}, {"chosen_logp": -70.0}])
    assert falling_note([{"chosen_logp": -60.0}, {"chosen_logp": -50.0}]) == ""
    assert falling_note([{"step": i, "chosen_logp_change": 0.3} for i in range(5)]) == ""
    assert falling_note([{"loss": 1.0}]) == falling_note([]) == ""


def test_training_panels_join_held_out_figures() -> None:
    """E7: one plot for training and held-out loss; counters have none; an unknown metric has its own."""
    rows = [{"step": i, "epoch": 0, "lr": 1e-5, "tokens": 9, "loss": 1.0, "mine": 2.0} for i in range(3)]
    made = training({"DPO": [*rows, {"step": 3, "heldout_loss": 0.9, "heldout_tokens": 4}]})
    assert made is not None
    (stage,) = made["stages"]
    assert [(panel["title"], panel["key"]) for panel in stage["panels"]] == [
        ("Loss", ["training", "held out"]),
        ("Mine", ["training"]),
    ]
    assert training({"DPO": []}) is None
    assert training({"DPO": [{"step": "one", "loss": None}, {"loss": "high"}]}) is None


@pytest.mark.parametrize(
    ("value", "unit", "signed", "text"),
    [
        (0.6852, "share", False, "68.5%"),
        (-0.071, "nats per token", True, "−0.07"),
        (0.071, "nats per token", True, "+0.07"),
        (-0.0001, "nats per token", True, "0.00"),
        (0.0, "points", True, "0.0"),
        (0.3, "points", True, "+30.0"),
        (1.1, "times", False, "1.10×"),
        (12_345.0, "rows", False, "12,345"),
        (None, "share", False, "–"),
        (1e9, "score", False, "1e+09"),
    ],
)
def test_numbers_read_well(value: float | None, unit: str, *, signed: bool, text: str) -> None:
    """E7."""
    assert number(value, unit, signed=signed) == text


def test_spans_and_durations_read_well() -> None:
    """E7."""
    assert span(FIGURES[0]) == "55.0 to 79.0%"
    assert span(FIGURES[-1]) == ""
    assert [duration(s) for s in (0.42, 59.7, 60, 312.4, 3600, 7440)] == [
        "0.4 s", "1 min 0 s", "1 min 0 s", "5 min 12 s", "1 h 0 min", "2 h 4 min"
    ]  # fmt: skip


# ------------------------------------------------------------------ in a real browser


@pytest.mark.browser
@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (390, "dark")])
def test_hostile_text_is_inert_and_the_page_fits(browser: Any, tmp_path: Path, width: int, scheme: str) -> None:
    """E7: nothing runs, nothing is fetched, nothing breaks out, and a phone need not scroll sideways."""
    made = report(simulated=True, policy=HOSTILE[:200], details={"x": HOSTILE})
    path, _ = write(made, folder=tmp_path, **full())
    opened = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    asked: list[str] = []
    opened.on("request", lambda request: asked.append(request.url))
    opened.goto(path.as_uri())
    opened.wait_for_timeout(200)
    assert opened.title().startswith("Promoted")
    assert asked == [path.as_uri()]
    assert opened.locator("script, img, iframe, object, link, form").count() == 0
    assert opened.locator("main").count() == 1
    assert opened.locator("main > footer").is_visible()
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    opened.close()


@pytest.mark.browser
def test_the_filter_works_without_a_script(browser: Any, tmp_path: Path) -> None:
    """E7: "Parent better" leaves the answers that the parent won."""
    path, _ = write(report(), folder=tmp_path, **full())
    opened = browser.new_page(java_script_enabled=False)
    opened.goto(path.as_uri())
    assert opened.locator(".pair").count() == 4
    opened.locator("label[for=only-lost]").click()
    shown = [opened.locator(".pair").nth(i).is_visible() for i in range(4)]
    assert shown == [False, False, True, False]
    opened.close()
