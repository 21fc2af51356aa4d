"""One measured run of ours, or of a plain transformers loop, on the peers' workload; `benchmarks.train` starts these.

    python -m benchmarks.train_work {ours,plain} {sft,rm,dpo} {tiny,smol} --peers FOLDER [--n-train N]

Prints one line "RESULT {json}" in the form of the peers' own scripts. Tokenising, loading and evaluating are outside the
measured time, the reference pass of DPO is inside; nothing is saved while the clock runs.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.nn.functional as F

from thumbwheel.config import ModelSettings, RewardSettings, TrainSettings, UpdateSettings
from thumbwheel.models.heads import RewardModel
from thumbwheel.models.language import LanguageModel, load
from thumbwheel.models.templates import ChatTemplate
from thumbwheel.records import Demonstration, Message, Preference
from thumbwheel.train.dpo import Dpo, Pair, with_reference
from thumbwheel.train.loop import StepReport, fit
from thumbwheel.train.reward import Reward, by_prompt
from thumbwheel.train.rows import Lengths, demonstration_rows, encode, preference_rows
from thumbwheel.train.sft import Sft
from thumbwheel.train.task import Task, evaluate
from thumbwheel.train.units import Unit

T = TypeVar("T")


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("impl", choices=["ours", "plain"])
    parser.add_argument("trainer", choices=["sft", "rm", "dpo"])
    parser.add_argument("model", choices=["tiny", "smol"])
    parser.add_argument("--peers", type=Path, required=True)
    parser.add_argument("--n-train", type=int)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--profile", type=Path, help="write torch.profiler's table of operators (slows the run)")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    sys.path.insert(0, str(given.peers))
    import workload

    hp = workload.HPS[given.model]
    if given.n_train:
        hp = dataclasses.replace(hp, n_train=given.n_train, n_eval=min(hp.n_eval, 32))
    run = (
        Ours(workload, hp, given.trainer, given.model)
        if given.impl == "ours"
        else Plain(workload, hp, given.trainer, given.model)
    )
    meter, metric = profiled(run.measure, given.profile)
    workload.emit(
        impl=given.impl, trainer=given.trainer, model=given.model, samples=hp.n_train, **meter.report(hp.n_train),
        flops=run.flops(), metric=metric,
    )  # fmt: skip


def profiled(measure: Callable[[], T], path: Path | None) -> T:
    """What `measure` returns; with a path torch.profiler's tables of operators, by name and by shape, go there."""
    if path is None:
        return measure()
    with torch.profiler.profile(record_shapes=True) as profiler:
        found = measure()
    by_name, by_shape = profiler.key_averages(), profiler.key_averages(group_by_input_shape=True)
    tables = [a.table(sort_by="self_cpu_time_total", row_limit=40) for a in (by_name, by_shape)]
    path.write_text("\n".join(tables), encoding="utf-8")
    return found


class Work:
    """The workload's rows as records, its hyper-parameters, and the floating-point work that no one can leave out."""

    def __init__(self, workload: Any, hp: Any, trainer: str, model: str) -> None:
        self.workload, self.hp, self.trainer = workload, hp, trainer
        self.path = workload.model_dir(model)
        self.rate = hp.lr / 10 if trainer == "dpo" and not hp.lora_r else hp.lr
        self.train, self.held = workload.splits("synthetic", hp)
        self.meter = workload.Meter()

    def opened(self, *, trainable: bool) -> LanguageModel:
        """The product's model of the workload; its text is plain text to be continued."""
        hp = self.hp
        settings = ModelSettings(
            path=str(self.path),
            adapter="lora" if hp.lora_r else "full",
            lora_r=hp.lora_r or 16,
            lora_alpha=hp.lora_alpha,
        )
        model = load(settings, trainable=trainable, seed=self.workload.SEED)
        model.tokenizer.chat_template = None
        model.template = ChatTemplate(model.tokenizer)
        return model


class Ours(Work):
    """The product's own tasks in the product's own loop."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        hp = self.hp
        self.model = self.opened(trainable=True)
        common = {
            "lr": self.rate, "batch_size": hp.batch, "weight_decay": 0.0, "eval_share": 0.0, "seed": self.workload.SEED,
            "checkpoint_every_steps": 10**6,
        }  # fmt: skip
        self.folder = Path(tempfile.mkdtemp())
        make = {"sft": self.sft, "rm": self.rm, "dpo": self.dpo}[self.trainer]
        self.settings, self.task = make(common)

    def encoded(self, rows: Sequence[dict[str, str]], rows_of: Any, kind: Any) -> Any:
        """Token rows of the workload's rows, cut as the peers cut them."""
        records = []
        for row in rows:
            prompt = (Message(role="user", content=row["prompt"]),)
            chosen, rejected = (Message(role="assistant", content=row[key]) for key in ("chosen", "rejected"))
            answers = {"response": chosen} if kind is Demonstration else {"chosen": chosen, "rejected": rejected}
            records.append(kind(prompt=prompt, **answers))
        lengths = Lengths(self.hp.max_length, "keep_start")
        done = encode(records, self.model.template, rows_of, noun="row", lengths=lengths, max_unusable_share=0.0)
        return done.rows

    def sft(self, common: dict[str, Any]) -> tuple[TrainSettings, Task[Any]]:
        """Chosen answers as demonstrations."""
        train, held = (
            [Unit(row.name, row.rows, 1.0) for row in self.encoded(side, demonstration_rows, Demonstration)]
            for side in (self.train, self.held)
        )
        return TrainSettings(**common), Sft(self.model, train, held)

    def rm(self, common: dict[str, Any]) -> tuple[TrainSettings, Task[Any]]:
        """Bradley-Terry alone, as the peers do it: no centring."""
        train, held = (by_prompt(self.encoded(side, preference_rows, Preference)) for side in (self.train, self.held))
        model = RewardModel(self.model, seed=self.workload.SEED)
        return RewardSettings(**common), Reward(model, train, held, tau=1.0, centre=0.0)

    def dpo(self, common: dict[str, Any]) -> tuple[TrainSettings, Task[Any]]:
        """Sigmoid loss; the reference is computed under the clock."""
        settings = UpdateSettings(**common, beta=self.hp.beta, epochs=1)
        train, held = (
            [Unit(row.name, row.rows, Pair(1.0, 1.0)) for row in self.encoded(side, preference_rows, Preference)]
            for side in (self.train, self.held)
        )
        return settings, Dpo(self.model, train, with_reference(self.model, held, settings, self.folder), settings)

    def measure(self) -> tuple[Any, dict[str, float]]:
        """Seconds, memory and tokens of the training, and the held-out figures after it."""
        task, meter = self.task, self.meter
        reference_s = 0.0

        def watch(report: StepReport) -> None:
            if report.step == 0 and not isinstance(task, Dpo):
                meter.__enter__()
            meter.tok += int(report.figures.get("tokens", 0))
            if report.step == report.steps:
                meter.__exit__()

        with tempfile.TemporaryDirectory() as folder:
            if isinstance(task, Dpo):
                meter.__enter__()
                began = time.perf_counter()
                task.units = with_reference(self.model, task.units, self.settings, Path(folder))
                reference_s = time.perf_counter() - began
            fit(task, self.settings, Path(folder), watcher=watch, progress=False)
        meter.span["reference"] = reference_s
        figures = evaluate(task, task.heldout, self.settings)
        return meter, renamed(self.trainer, figures)

    def flops(self) -> float:
        """6 N a token (4 N with adapters), 2 N more for a reference; the head on answer positions only."""
        full = not self.hp.lora_r
        head = self.model.network.get_output_embeddings().weight
        trunk = sum(p.numel() for p in self.model.network.parameters()) - head.numel()
        answers = sum(int(row.trained.sum()) for unit in self.task.units for row in unit.rows)
        passes = (6 if full else 4) + (2 if self.trainer == "dpo" else 0)
        return float(passes * (trunk * self.meter.tok + (head.numel() * answers if self.trainer != "rm" else 0)))


class Plain(Work):
    """What one writes first with transformers: padded batches, logits of every position, the reference in every step."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

        torch.manual_seed(self.workload.SEED)
        self.tokenizer = AutoTokenizer.from_pretrained(self.path)
        rm = self.trainer == "rm"
        kind = AutoModelForSequenceClassification if rm else AutoModelForCausalLM
        options = {"num_labels": 1} if rm else {}
        self.model = kind.from_pretrained(self.path, dtype=torch.float32, **options)
        self.reference = None
        if self.hp.lora_r:
            from peft import LoraConfig, get_peft_model

            names = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
            config = LoraConfig(
                r=self.hp.lora_r, lora_alpha=self.hp.lora_alpha, target_modules=names,
                task_type="SEQ_CLS" if rm else "CAUSAL_LM",
            )  # fmt: skip
            self.model = get_peft_model(self.model, config)
        elif self.trainer == "dpo":
            self.reference = kind.from_pretrained(self.path, dtype=torch.float32).requires_grad_(False)
        self.learning = [p for p in self.model.parameters() if p.requires_grad]
        self.optimiser = torch.optim.AdamW(self.learning, lr=self.rate, weight_decay=0.0)

    def padded(self, rows: Sequence[dict[str, str]], key: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(B, T) ids, attention mask, and mask of answer tokens."""
        seqs, starts = [], []
        for row in rows:
            prompt = self.tokenizer(row["prompt"])["input_ids"]
            whole = prompt + self.tokenizer(row[key])["input_ids"] + [self.tokenizer.eos_token_id]
            seqs.append(whole[: self.hp.max_length])
            starts.append(len(prompt))
        width = max(map(len, seqs))
        ids = torch.full((len(seqs), width), self.tokenizer.pad_token_id)
        mask, answer = torch.zeros_like(ids), torch.zeros(len(seqs), width, dtype=torch.bool)
        for place, (seq, start) in enumerate(zip(seqs, starts, strict=True)):
            ids[place, : len(seq)] = torch.tensor(seq)
            mask[place, : len(seq)] = 1
            answer[place, start : len(seq)] = True
        return ids, mask, answer

    def logps(self, model: Any, batch: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, int]:
        """(B,) summed log-probabilities of the answers, and their tokens."""
        ids, mask, answer = batch
        self.meter.tok += int(mask.sum())
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(input_ids=ids, attention_mask=mask).logits
        logp = torch.log_softmax(logits[:, :-1].float(), -1).gather(-1, ids[:, 1:, None])[..., 0]
        return (logp * answer[:, 1:]).sum(-1), int(answer.sum())

    def loss(self, rows: Sequence[dict[str, str]]) -> tuple[torch.Tensor, torch.Tensor]:
        """The step's loss, and (B,) how far chosen is before rejected."""
        if self.trainer == "sft":
            logp, n = self.logps(self.model, self.padded(rows, "chosen"))
            return -logp.sum() / n, logp
        both = [self.padded(rows, key) for key in ("chosen", "rejected")]
        if self.trainer == "rm":
            with torch.autocast("cpu", torch.bfloat16):
                chosen, rejected = (self.model(input_ids=b[0], attention_mask=b[1]).logits[:, 0].float() for b in both)
            self.meter.tok += sum(int(b[1].sum()) for b in both)
            return -F.logsigmoid(chosen - rejected).mean(), chosen - rejected
        chosen, rejected = (self.logps(self.model, b)[0] for b in both)
        with torch.no_grad():
            if self.reference is None:
                with self.model.disable_adapter():
                    ref = [self.logps(self.model, b)[0] for b in both]
            else:
                ref = [self.logps(self.reference, b)[0] for b in both]
        gap = self.hp.beta * ((chosen - ref[0]) - (rejected - ref[1]))
        return -F.logsigmoid(gap).mean(), gap

    def measure(self) -> tuple[Any, dict[str, float]]:
        """As `Ours.measure`."""
        dice = torch.Generator().manual_seed(self.workload.SEED)
        order = torch.randperm(len(self.train), generator=dice).tolist()
        with self.meter:
            for start in range(0, len(order), self.hp.batch):
                loss, _ = self.loss([self.train[index] for index in order[start : start + self.hp.batch]])
                loss.backward()
                torch.nn.utils.clip_grad_norm_(self.learning, 1.0)
                self.optimiser.step()
                self.optimiser.zero_grad()
        tokens = self.meter.tok
        parts = [self.held[start : start + self.hp.batch] for start in range(0, len(self.held), self.hp.batch)]
        with torch.no_grad():
            found = [self.loss(part) for part in parts]
        self.meter.tok = tokens
        gaps = torch.cat([gap for _, gap in found])
        loss = sum(float(loss) * len(part) for (loss, _), part in zip(found, parts, strict=True)) / len(self.held)
        figures = {"loss": loss, "accuracy": float((gaps > 0).float().mean()), "margin": float(gaps.mean())}
        return self.meter, renamed(self.trainer, figures)

    def flops(self) -> None:
        """Not asked of this one."""


def renamed(trainer: str, figures: dict[str, float]) -> dict[str, float]:
    """Held-out figures under the names that the peers' scripts use."""
    names = {"loss": "eval_loss"}
    if trainer == "rm":
        names |= {"accuracy": "eval_accuracy"}
    if trainer == "dpo":
        names |= {"accuracy": "eval_rewards/accuracies", "margin": "eval_rewards/margins"}
    return {new: round(figures[old], 4) for old, new in names.items()}


if __name__ == "__main__":
    main()
