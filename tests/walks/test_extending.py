"""What the page on extending shows works as it stands there: each file is written out, and used by its name."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from thumbwheel.client import Client
from thumbwheel.collect.formats import Good, read
from thumbwheel.config import FeedbackSettings, Settings, UpdateSettings, from_tree
from thumbwheel.errors import RecordError
from thumbwheel.evals.judges import open_judge
from thumbwheel.formulas.preference import preference_losses
from thumbwheel.records import Message
from thumbwheel.signals.views import labelled, preferences, views
from thumbwheel.stores.sql import open_store
from thumbwheel.testing.clock import NOON
from thumbwheel.train.choice import loss_of
from thumbwheel.web.app import create_app
from thumbwheel.web.serve import running

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "howto" / "extend.md").read_text(encoding="utf-8")
SOME = "reopening or erase or duplicate or every_method"
FILES = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, re.DOTALL))


@pytest.fixture(autouse=True)
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The page's files in a folder, as their author would have them."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in FILES:
        sys.modules.pop(name.removesuffix(".py"), None)


def test_the_page_holds_a_file_for_each_thing() -> None:
    assert list(FILES) == [
        "applause.py",
        "squared_hinge.py",
        "plain_words.py",
        "survey.py",
        "unanimous.py",
        "diary_store.py",
        "test_diary_store.py",
    ]
    for name in FILES:
        named = name.removesuffix(".py")
        assert f"{named}:" in PAGE or named.endswith("diary_store"), f"{name} is used by no command of the page"


def test_a_kind_goes_from_the_application_to_pairs(written: Path) -> None:
    """F1: its polarity by hand: (7 - 2)/4 is over 1 and stays 1; (0 - 2)/4 = -0.5."""
    settings = from_tree({"server": {"kinds": ["applause:Applause"]}})
    with (
        open_store(f"sqlite:///{written}/s.db") as store,
        running(create_app(store, settings)) as url,
        Client(url, who="ann") as client,
    ):
        good = client.step("2+2=", "4")
        bad = client.step("2+2=", "5", task_id=good.task_id, attempt=1)
        client.feedback(good, "applause:Applause", {"claps": 7})
        client.feedback(bad, "applause:Applause", {"claps": 0})
        with pytest.raises(RecordError, match=r"value\.claps"):
            client.feedback(bad, "applause:Applause", {"claps": 11})
        episodes = list(store.episodes())
    labels = labelled(episodes, FeedbackSettings()).rows
    assert [(row.response.content, row.value, row.weight) for row in labels] == [("4", 1.0, 0.5), ("5", -0.5, 0.5)]
    (pair,) = preferences(episodes, FeedbackSettings()).rows
    assert (pair.chosen.content, pair.rejected.content, pair.margin) == ("4", "5", 1.5)


def test_a_loss_has_its_known_values() -> None:
    """At the reference 1; h = 2 with β = 1 is past the corner: 0; the other way round (1 + 2)² = 9; gradient -2β at h = 0."""
    spec, options = loss_of(UpdateSettings(loss="squared_hinge:squared_hinge"))
    assert spec is preference_losses.get("squared_hinge:squared_hinge")
    assert options == {}
    chosen = torch.tensor([-1.0, -1.0, -3.0], requires_grad=True)
    rejected = torch.tensor([-1.0, -3.0, -1.0])
    ref = torch.tensor([-1.0, -1.0, -1.0])
    value = spec.fn(chosen, rejected, ref, ref, beta=1.0)
    assert value.tolist() == [1.0, 0.0, 9.0]
    value[0].backward()
    assert chosen.grad is not None
    assert chosen.grad[0].item() == -2.0
    swapped = spec.fn(rejected, chosen, ref, ref, beta=1.0, preference=torch.zeros(3))
    assert swapped.tolist() == [1.0, 0.0, 9.0]


def test_a_judge_scores_by_its_rule() -> None:
    judge = open_judge("plain_words:plain_words")
    prompt = (Message(role="user", content="Is it?"),)
    votes = judge.prefer(
        [prompt] * 3, ["Yes.", "Perhaps.", "I think it depends."], ["Arguably.", "Perhaps.", "Perhaps."]
    )
    assert votes.tolist() == [1.0, 0.5, 0.0]
    assert judge.origin == "rule"


def test_a_format_reads_its_file_and_rejects_by_line(written: Path) -> None:
    """F6."""
    (written / "answers.csv").write_text("question,reply,face,annotator\n2+2=,4,:),ann\n2+2=,5,:(,ann\n2+2=,6,8),ann\n")
    with read(written / "answers.csv", format="survey:survey", now=NOON) as reading:
        rows = list(reading)
    good = [row.made.feedback[0] for row in rows if isinstance(row, Good)]
    assert [(one.kind, one.value, one.who) for one in good] == [
        ("stars", {"stars": 5}, "ann"),
        ("stars", {"stars": 1}, "ann"),
    ]
    (reject,) = (row for row in rows if not isinstance(row, Good))
    assert reject.line == 4
    assert "This is no face" in reject.detail
    assert not reading.unused


def test_a_view_by_name_leaves_out_what_people_disagreed_on(written: Path) -> None:
    """Two people on one pair, one each way: p = ½, so it is not unanimous; the other pair is."""
    with (
        open_store(f"sqlite:///{written}/s.db") as store,
        running(create_app(store, Settings())) as url,
        Client(url) as client,
    ):
        for question, choices in (("2+2=", ("ann", "bo")), ("3+3=", ("ann",))):
            one = client.step(question, "yes")
            other = client.step(question, "no", task_id=one.task_id, attempt=1)
            for who, chosen in zip(choices, (one, other), strict=False):
                client.choice([one, other], chosen, who=who)
        episodes = list(store.episodes())
    assert len(preferences(episodes, FeedbackSettings()).rows) == 2
    (row,) = views.get("unanimous:unanimous")(episodes, FeedbackSettings()).rows
    assert row.prompt[-1].content == "3+3="
    assert math.isclose(row.p, 1.0)


def test_a_store_passes_the_suite_and_keeps_its_diary(written: Path) -> None:
    """S1: some of the suite, in a process of its own, as its author runs it."""
    said = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_diary_store.py", "-k", SOME],
        cwd=written,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert said.returncode == 0, said.stdout
    assert int(re.search(r"(\d+) passed", said.stdout).group(1)) >= 4  # type: ignore[union-attr]
    from diary_store import DiaryStore  # type: ignore[import-not-found]

    (written / "here").mkdir()
    with DiaryStore.open(written / "here") as store:
        store.erase_person("nobody", now=NOON)
    assert (written / "here" / "erasures.txt").read_text("utf-8").endswith(" 0 feedbacks\n")
