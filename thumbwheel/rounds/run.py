"""One turn of the wheel: gather, reward, update, measure, decide. Resumable after every stage and inside the update.

result = run(store, settings, clock=now, watch=Shown(console))
result.report.verdict                      # "promote" or "hold"; result.html is the page to read
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import cast

from thumbwheel.config import ModelSettings, Settings
from thumbwheel.engines.base import Sampler
from thumbwheel.engines.opening import open_sampler
from thumbwheel.errors import StoreError
from thumbwheel.evals import report as pages
from thumbwheel.evals.gates import gates, verdict, verdict_line
from thumbwheel.evals.judges import Votes
from thumbwheel.evals.language import language_figures
from thumbwheel.evals.policy import check_held_out, win_rate
from thumbwheel.models.language import LanguageModel, load
from thumbwheel.records import Figure, Preference, Report, Update
from thumbwheel.rounds import learn, measure
from thumbwheel.rounds.gather import PROMPTS, gather, read_rows
from thumbwheel.rounds.stages import Outcome, RoundFolder, open_round
from thumbwheel.rounds.watch import Watch
from thumbwheel.stores.base import PolicyVersion, Store

BASE = "v0"
STAGES = ("gather", "reward", "update", "answer", "compare", "judge", "decide")


@dataclass(frozen=True)
class RoundResult:
    """What a round made. `version` is the new policy, as it stands after the decision."""

    id: str
    report: Report
    html: Path
    json: Path
    version: PolicyVersion


def base_version(store: Store, settings: Settings, *, now: datetime) -> PolicyVersion:
    """The live policy; on a new store, the model of the settings becomes version v0."""
    live = store.live()
    if live is None:
        checkpoint = str(settings.model.path)
        store.add_version(
            PolicyVersion(
                id=BASE,
                kind="policy",
                parent=None,
                checkpoint=checkpoint,
                status="live",
                update_id=None,
                report_id=None,
                at=now,
            )
        )
        live = store.live()
    if live is None:
        raise StoreError("The first version was added and is not live. Check the store with: thumbwheel doctor")
    return live


def model_of(version: PolicyVersion, settings: Settings) -> ModelSettings:
    """Model settings that load a version's weights."""
    return settings.model.model_copy(update={"path": version.checkpoint})


def run(
    store: Store, settings: Settings, *, clock: Callable[[], datetime], watch: Watch, fresh: bool = False
) -> RoundResult:
    """Do the unfinished round, or a new one (`fresh` leaves an unfinished one behind).

    Raises DataError where the feedback cannot carry a round or people have yet to vote; CheckpointError where an
    unfinished round was begun with other settings.
    """
    live = base_version(store, settings, now=clock())
    folder = open_round(
        settings.store.folder / "rounds",
        inputs={"settings": settings.digest(), "parent": live.id},
        announce=watch.stage,
        fresh=fresh,
    )
    return _Round(store, settings, folder, live, clock, watch).go()


class _Round:
    """The stages of one round, in order."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        folder: RoundFolder,
        live: PolicyVersion,
        clock: Callable[[], datetime],
        watch: Watch,
    ) -> None:
        self.store, self.settings, self.folder, self.live = store, settings, folder, live
        self.clock, self.watch = clock, watch

    def go(self) -> RoundResult:
        """Every stage once."""
        done: dict[str, Outcome] = {}
        for name in STAGES:
            work = cast(Callable[[dict[str, Outcome]], Outcome], getattr(self, f"_{name}"))
            done[name] = self.folder.run(name, lambda work=work: work(done))  # type: ignore[misc]
            for line in done[name].get("lines", ()):
                self.watch.say(line)
        return self._result(done)

    # ------------------------------------------------------------------ stages

    def _gather(self, done: dict[str, Outcome]) -> Outcome:
        del done
        folder = self.settings.store.folder / "snapshots"
        outcome = gather(self.store, self.settings, folder=folder, live=self.live, now=self.clock())
        lines = [f"{name}: {line}" for name, line in outcome["accounts"].items()]
        lines.append(
            f"{outcome['train']['n']} rows to train on, {len(outcome['prompts'])} prompts held out to measure on"
        )
        return {**outcome, "lines": lines}

    def _reward(self, done: dict[str, Outcome]) -> Outcome:
        train, held = (self._pairs(done, name) for name in ("reward_train", "reward_held"))
        on_language_model = self.settings.reward.enabled and self.settings.reward.trunk == "language_model"
        tick = self.watch.bar("reward model", "steps") if on_language_model else None
        outcome = learn.fit_reward(train, held, self.settings, folder=self.folder.path, tick=tick, live=self.live.id)
        if outcome["kind"] is None:
            return {**outcome, "lines": [f"no reward model: {outcome['why']}"]}
        return {**outcome, "lines": [learn.reward_line(outcome), outcome["accounts"]["fresh"]]}

    def _update(self, done: dict[str, Outcome]) -> Outcome:
        gathered = done["gather"]
        rows = read_rows(gathered["train"])
        held = read_rows(gathered["reward_held"]) if gathered["view"] == "preferences" else []
        model = load(model_of(self.live, self.settings), trainable=True, seed=self.settings.update.seed)
        online = self.settings.update.method == "online"
        in_iterations = self.settings.update.method in ("online", "picks")
        outcome = learn.fit_policy(
            model, rows, held, self.settings, folder=self.folder.path,
            tick=self.watch.bar("policy update", "iterations" if in_iterations else "steps"),
            scorers=learn.open_scorers(self.settings, done["reward"], folder=self.folder.path) if online else None,
            preferences=self._pairs(done, "reward_train") if in_iterations else (),
        )  # fmt: skip
        return {**outcome, **self._register(done["gather"], outcome)}

    def _register(self, gathered: Outcome, outcome: Outcome) -> Outcome:
        """Record the update and its version as a candidate; doing it twice changes nothing."""
        now = self.clock()
        rows = read_rows(gathered["train"])
        version = self._next_version()
        update = Update(
            id=f"{version}-{self.folder.id}",
            kind=outcome["method"],
            parent=self.live.id,
            checkpoint=outcome["checkpoint"],
            snapshot=gathered["train"]["hash"],
            config_hash=self.settings.digest(),
            metrics=outcome["metrics"],
            feedback_ids=tuple(dict.fromkeys(id for row in rows for id in row.feedback_ids)),
            at=now,
        )
        if self.store.update(update.id) is None:
            self.store.record_update(update)
        if version not in {known.id for known in self.store.versions()}:
            candidate = PolicyVersion(
                id=version,
                kind="policy",
                parent=self.live.id,
                checkpoint=outcome["checkpoint"],
                status="candidate",
                update_id=update.id,
                report_id=None,
                at=now,
            )
            self.store.add_version(candidate)
        return {"version": version, "update_id": update.id}

    def _answer(self, done: dict[str, Outcome]) -> Outcome:
        held = PROMPTS.validate_python(done["gather"]["prompts"])
        check_held_out(held, [row.prompt for row in read_rows(done["gather"]["train"])])
        checkpoint = done["update"]["checkpoint"]
        model = load(self.settings.model.model_copy(update={"path": checkpoint}))
        tick = self.watch.bar("new policy answers", "answers")
        return measure.answer_new(model, self._sampler(model), held, self.settings, progress=tick)

    def _compare(self, done: dict[str, Outcome]) -> Outcome:
        model = load(model_of(self.live, self.settings))
        tick = self.watch.bar("parent answers", "answers")
        return measure.answer_parent(model, self._sampler(model), done["answer"], self.settings, progress=tick)

    def _judge(self, done: dict[str, Outcome]) -> Outcome:
        scorer = learn.open_reward(self.settings, done["reward"], folder=self.folder.path)
        votes = measure.vote(done["compare"], self.settings, folder=self.folder.path, scorer=scorer)
        figures = self._figures(done, votes)
        return {
            "judge": votes.judge,
            "origin": votes.origin,
            "new_wins": [None if value != value else float(value) for value in votes.new_wins],
            "figures": [figure.model_dump(mode="json") for figure in figures],
        }

    def _decide(self, done: dict[str, Outcome]) -> Outcome:
        figures = [
            Figure.model_validate(one) for one in (*done["judge"]["figures"], *done["reward"].get("figures", ()))
        ]
        held = gates(figures, self.settings.gates)
        simulated = set(done["gather"]["origins"]) == {"simulated"} or done["judge"]["origin"] == "simulated"
        report = Report(
            id=f"{done['update']['version']}-{self.folder.id}-report",
            policy=done["update"]["version"],
            parent=self.live.id,
            verdict=verdict(held),
            figures=tuple(figures),
            gates=held,
            seed=self.settings.seed,
            seconds=round(sum(outcome.get("seconds", 0.0) for outcome in done.values()), 1),
            simulated=simulated,
            at=self.clock(),
            details={"judge": done["judge"]["judge"], "round": self.folder.id},
        )
        report = self.store.report(report.id) or report
        self.store.record_report(report)
        if report.verdict == "promote":
            self.store.promote(report.policy, now=self.clock(), report_id=report.id)
        else:
            self.store.hold(report.policy, now=self.clock(), report_id=report.id)
        return {"report": report.model_dump(mode="json"), "lines": [verdict_line(held), *(gate.why for gate in held)]}

    # ------------------------------------------------------------------ pieces

    def _pairs(self, done: dict[str, Outcome], name: str) -> list[Preference]:
        return cast(list[Preference], read_rows(done["gather"][name]))

    def _sampler(self, model: LanguageModel) -> Sampler:
        return open_sampler(model, self.settings.engine)

    def _next_version(self) -> str:
        """v1, v2, …; a round that was killed after registering its version finds it again."""
        for version in self.store.versions():
            if version.update_id == f"{version.id}-{self.folder.id}":
                return version.id
        return f"v{len(self.store.versions())}"

    def _figures(self, done: dict[str, Outcome], votes: Votes) -> tuple[Figure, ...]:
        scorer = learn.open_reward(self.settings, done["reward"], folder=self.folder.path)
        new, parent = (measure.answers_of(done["compare"], whose, scorer) for whose in ("new", "parent"))
        evals, seed = self.settings.evals, self.settings.seed
        rates = win_rate(votes, settings=evals, seed=seed)
        return (*rates, *language_figures(new, parent=parent, settings=evals, seed=seed))

    def _result(self, done: dict[str, Outcome]) -> RoundResult:
        report = Report.model_validate(done["decide"]["report"])
        html, json = self._write_page(done, report)
        version = next(version for version in self.store.versions() if version.id == report.policy)
        return RoundResult(self.folder.id, report, html, json, version)

    def _write_page(self, done: dict[str, Outcome], report: Report) -> tuple[Path, Path]:
        """The page can be written again at any time; it holds nothing that is not in the stages' files."""
        gathered = done["gather"]
        earlier = [
            self.store.report(v.report_id) for v in self.store.versions() if v.report_id and v.report_id != report.id
        ]
        return pages.write(
            report,
            folder=self.folder.path,
            samples=self._side_by_side(done)[: self.settings.round.samples_in_report],
            curves=learn.curves(self.folder.path),
            fresh=learn.fresh_of(done["update"], self.folder.path),
            accounts={
                **gathered["accounts"],
                **done["reward"].get("accounts", {}),
                **done["update"].get("accounts", {}),
            },
            reward=learn.check_reward(
                self._pairs(done, "reward_held"), self.settings, done["reward"], folder=self.folder.path
            ),
            feedback=gathered["by_kind"],
            lineage={
                "snapshot": gathered["train"]["hash"],
                "settings": self.settings.digest(),
                "update": done["update"]["update_id"],
                "checkpoint": done["update"]["checkpoint"],
            },
            history=[one for one in earlier if one is not None],
        )

    def _side_by_side(self, done: dict[str, Outcome]) -> list[pages.SampleRow]:
        """Both answers to each held-out prompt, in an order that favours neither side."""
        compared, wins = done["compare"], done["judge"]["new_wins"]
        prompts = PROMPTS.validate_python(compared["prompts"])
        rows = [
            pages.SampleRow(prompt=prompt, new=new, parent=parent, vote=won)
            for prompt, new, parent, won in zip(
                prompts, compared["new"]["texts"], compared["parent"]["texts"], wins, strict=True
            )
        ]
        return sorted(rows, key=lambda row: hashlib.sha256(repr(row.prompt).encode()).digest())
