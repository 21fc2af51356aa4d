"""P7: the commands of the page on sweeps, followed word for word, but for a tiny model in place of a small one."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from thumbwheel import cli
from thumbwheel.testing.models import tiny_language_model

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "howto" / "sweep.md").read_text(encoding="utf-8")
# Read from the folder that the commands run in; they say how each value is tried.
TINY = """
[model]
path = "tiny"
dtype = "float32"
lora_r = 2
[sample]
max_new_tokens = 4
[reward]
trunk = "language_model"
batch_size = 16
[update]
eval_share = 0.3
epochs = 1
[online]
iterations = 1
prompts_per_iteration = 2
answers_per_prompt = 2
eval_share = 0.3
[round]
progress = false
"""
OVER = {"dpo": "update.beta", "grpo": "online.kl.coefficient", "ppo": "online.kl.target_per_response_nats"}


def run(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["thumbwheel", *arguments])
    try:
        cli.main()
    except SystemExit as leaving:
        return int(leaving.code or 0)
    return 0


def test_every_command_of_the_page_ends_with_a_frontier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    tiny_language_model(seed=1).save(tmp_path / "tiny")
    (tmp_path / "thumbwheel.toml").write_text(TINY, encoding="utf-8")
    (tmp_path / "my_rules.py").write_text("def score(prompt, text):\n    return len(text)\n", encoding="utf-8")
    pairs = [{"prompt": f"{n}+1=", "chosen": f"{n + 1}", "rejected": f"It is {n + 2}, I think"} for n in range(24)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs), encoding="utf-8")
    for name, count in (("prompts.txt", 12), ("check.txt", 3)):
        (tmp_path / name).write_text("".join(f"Say {n} twice.\n" for n in range(count)), encoding="utf-8")

    (block,) = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    commands = [shlex.split(line)[1:] for line in block.splitlines()]
    assert [command[0] for command in commands] == ["train", "sweep", "sweep", "sweep"]
    for command in commands:
        assert run(command, monkeypatch) == 0, capsys.readouterr()
        told = capsys.readouterr().out
        if command[0] == "sweep":
            folder = tmp_path / "sweep" / command[1]
            assert f"Made in sweep/{command[1]}/: sweep.html, sweep.json" in told
            found = json.loads((folder / "sweep.json").read_text(encoding="utf-8"))
            assert found["over"] == OVER[command[1]]
            assert all((folder / f"{point['value']:g}" / "model").is_dir() for point in found["points"])
            assert (folder / "sweep.html").is_file()
