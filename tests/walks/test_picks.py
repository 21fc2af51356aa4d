"""The page on picks, followed: sampled answers, choices posted over HTTP, a policy that learned from them. No row is lost."""

from __future__ import annotations

import io
import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from thumbwheel import cli
from thumbwheel.config import ModelSettings, Settings
from thumbwheel.models.language import load
from thumbwheel.models.scoring import summed_logps
from thumbwheel.signals.groups import sampling_of
from thumbwheel.stores.sql import open_store
from thumbwheel.testing.models import tiny_language_model
from thumbwheel.web.app import create_app
from thumbwheel.web.serve import running

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "howto" / "picks.md").read_text(encoding="utf-8")
TOML = """
[model]
path = "tiny"
dtype = "float32"
lora_r = 4
[sample]
max_new_tokens = 5
[online]
lr = 5e-3
passes = 4
prompts_per_iteration = 4
[round]
progress = false
"""
AT = "2026-01-31T12:00:10Z"


def commands() -> list[list[str]]:
    """Every `$ thumbwheel …` of the page but the server's, in order."""
    blocks = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    lines = [line.removeprefix("$ ") for block in blocks for line in block.splitlines()]
    return [shlex.split(line)[1:] for line in lines if line.startswith("thumbwheel ") and "serve" not in line]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a tiny model, its settings and eight prompts."""
    tiny_language_model(seed=1).save(tmp_path / "tiny")
    (tmp_path / "thumbwheel.toml").write_text(TOML, encoding="utf-8")
    (tmp_path / "prompts.txt").write_text("".join(f"Say {letter}.\n" for letter in "abcdefgh"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs a command of the page, which has to succeed; what it said."""

    def run(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["thumbwheel", *arguments])
        monkeypatch.setattr(sys, "stdin", io.StringIO(""))
        capsys.readouterr()
        code: object = 0
        try:
            cli.main()
        except SystemExit as leaving:
            code = leaving.code
        said = capsys.readouterr()
        assert not code, said
        return said.out

    return run


def vote(groups: list[dict[str, Any]], home: Path) -> list[httpx.Response]:
    """What people post: two who pick, one who ranks, one tie; and one who names what was not on screen."""
    store = open_store(f"sqlite:///{home / 'thumbwheel.db'}")
    answers = []
    try:
        with running(create_app(store, Settings())) as url, httpx.Client(base_url=url) as http:
            for n, group in enumerate(groups):
                ids = [answer["step_id"] for answer in group["answers"]]
                said: dict[str, Any] = {"kind": "choice", "value": {"chosen": ids[n % 4]}}
                if n == 6:
                    said = {"kind": "choice", "value": {"tie": True}}
                elif n == 7:
                    said = {"kind": "ranking", "value": {"order": [[ids[1]], ids[2:], [ids[0]]]}}
                body = {"id": f"pick-{n}", "target": {"task_id": group["task_id"]}, "shown": ids, "who": "u1", "at": AT}
                answers.append(http.post("/v1/feedback", json={**body, **said}))
            stranger = {**body, "id": "odd", "kind": "choice", "value": {"chosen": "never-shown"}}
            answers.append(http.post("/v1/feedback", json=stranger))
    finally:
        store.close()
    return answers


def test_from_sampled_answers_to_a_policy_that_learned_from_picks(home: Path, typed: Any) -> None:
    """P5, F1, S3, L3: sample -> choice posted -> export -> train, with the page's own commands."""
    sample, export, train, share, fresh = commands()
    said = typed(*sample)
    assert "32 answers sampled, 0 were there already" in said
    groups = [json.loads(line) for line in (home / "groups.jsonl").read_text("utf-8").splitlines()]
    assert [len(group["answers"]) for group in groups] == [4] * 8
    assert groups[0]["prompt"] == [{"role": "user", "content": "Say a."}]
    before = (home / "groups.jsonl").read_bytes()
    assert "0 answers sampled, 32 were there already" in typed(*sample)  # idempotent
    assert (home / "groups.jsonl").read_bytes() == before

    statuses = [answer.status_code for answer in vote(groups, home)]
    assert statuses == [201] * 8 + [422]

    said = typed(*export)
    assert "groups: rows in 8, kept 7, dropped 0, unscored 1" in said
    assert "a tie: no answer has a reward 1" in said
    said = typed(*train)
    assert "answers: rows in 28, kept 28, dropped 0" in said
    assert "grpo: 8 iterations" in said  # four passes over seven groups, four at a time

    rows = [json.loads(line)["record"] for line in (home / "picks.jsonl").read_text("utf-8").splitlines()]
    assert [one["reward"] for one in rows[-1]["answers"]] == [0.0, 1.0, 0.5, 0.5]  # the ranking
    old, new = (load(ModelSettings(path=path, dtype="float32")) for path in ("tiny", "trained/picks/model"))
    assert preference(new, rows) > preference(old, rows) + 0.5

    said = typed(*share)
    assert "(100% of the weight) are answers of v0; 0 prompts of 4 answers bring them to 30% of the pairs" in said
    assert "neither held out" not in typed(*fresh)
    assert not (home / "fresh.jsonl").exists()  # no more are needed


def preference(model: Any, rows: list[dict[str, Any]]) -> float:
    """How much likelier the best answer of a group is than the others, in nats."""
    gaps = []
    for row in rows:
        prompt = tuple(map(_message, row["prompt"]))
        encoded = [
            model.template.encode(prompt, "", token_ids=one["token_ids"], tokenizer=one["tokenizer"])
            for one in row["answers"]
        ]
        logps = summed_logps(model, encoded)
        best = max(range(len(encoded)), key=lambda i: row["answers"][i]["reward"])
        gaps.append(float(logps[best]) - float(sum(logps) - logps[best]) / (len(encoded) - 1))
    return sum(gaps) / len(gaps)


def _message(data: dict[str, Any]) -> Any:
    from thumbwheel.records import Message

    return Message.model_validate(data)


def test_what_is_stored_is_what_was_sampled(home: Path, typed: Any) -> None:
    """P5: ids, a log-probability each that sums to the answer's, tokenizer, version, sampling; four attempts of one task."""
    typed("sample", "prompts.txt", "-n", "2", "--top-p", "0.9")
    model = load(ModelSettings(path="tiny", dtype="float32"))
    with open_store(f"sqlite:///{home / 'thumbwheel.db'}") as store:
        episodes = list(store.episodes())
    assert [[step.attempt for step in episode.steps] for episode in episodes] == [[0, 1]] * 8
    for step in (step for episode in episodes for step in episode.steps):
        assert step.token_logps is not None
        assert step.behaviour_logp == pytest.approx(sum(step.token_logps))
        assert (step.tokenizer, step.policy_version) == (model.template.tokenizer_hash, "v0")
        sampling = sampling_of(step.tags)
        assert sampling is not None
        assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.7, 0.9, 0)
        assert sampling.template == model.template.hash


def test_more_answers_are_added_to_what_is_there(home: Path, typed: Any) -> None:
    """Resumable: the first two of four are those of before; another seed is another task."""
    typed("sample", "prompts.txt", "-n", "2")
    first = [json.loads(line) for line in (home / "groups.jsonl").read_text("utf-8").splitlines()]
    assert "16 answers sampled, 16 were there already" in typed("sample", "prompts.txt", "-n", "4")
    more = [json.loads(line) for line in (home / "groups.jsonl").read_text("utf-8").splitlines()]
    assert [group["answers"][:2] for group in more] == [group["answers"] for group in first]
    assert "16 answers sampled, 0 were there already" in typed("sample", "prompts.txt", "-n", "2", "-s", "seed=1")


def test_a_killed_sampling_goes_on(home: Path, typed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between two parts: what was put on disk stays, and the whole is what it would have been."""
    from thumbwheel.cli import sampling
    from thumbwheel.engines.batch_sampler import BatchSampler

    typed("sample", "prompts.txt", "-n", "2", "-o", "whole.jsonl", "-s", "store.url=sqlite:///other.db")
    monkeypatch.setattr(sampling, "CHUNK", 4)
    real, calls = BatchSampler.sample, 0

    def dies(self: Any, *args: Any, **how: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return real(self, *args, **how)

    with monkeypatch.context() as patch:
        patch.setattr(BatchSampler, "sample", dies)
        patch.setattr(sys, "argv", ["thumbwheel", "sample", "prompts.txt", "-n", "2"])
        with pytest.raises(SystemExit) as left:
            cli.main()
        assert left.value.code == 130
    assert "8 answers sampled, 8 were there already" in typed("sample", "prompts.txt", "-n", "2")
    assert (home / "groups.jsonl").read_bytes() == (home / "whole.jsonl").read_bytes()


def test_the_python_of_the_page_records_what_a_lesson_needs(home: Path) -> None:
    """P5: an application's own samples, sent over HTTP, can be learned from as they are."""
    from thumbwheel.config import FeedbackSettings
    from thumbwheel.signals.groups import groups
    from thumbwheel.train.picked import usable_of
    from thumbwheel.train.rows import Lengths

    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    store = open_store(f"sqlite:///{home / 'own.db'}")
    try:
        with running(create_app(store, Settings())) as url:
            code = code.replace("http://127.0.0.1:8321", url).replace("smollm2-135m-instruct", "tiny")
            names: dict[str, Any] = {}
            exec(compile(code, "picks.md", "exec"), names)
        (row,) = groups(store.episodes(), FeedbackSettings()).rows
    finally:
        store.close()
    assert [answer.reward for answer in row.answers] == [0.0, 0.0, 1.0, 0.0]
    found = usable_of([row], names["model"], lengths=Lengths())
    assert (found.account.kept, found.account.dropped.total()) == (4, 0)


def test_the_body_of_the_page_is_accepted(home: Path) -> None:
    """F1: the pick as the page posts it waits for its steps."""
    ((path, body),) = re.findall(r"curl -X POST http://127\.0\.0\.1:8321(\S+) .*?-d '(.*?)'", PAGE, re.DOTALL)
    store = open_store(f"sqlite:///{home / 'body.db'}")
    try:
        with running(create_app(store, Settings())) as url:
            assert httpx.post(url + path, json=json.loads(body)).json()["status"] == "waiting"
    finally:
        store.close()
