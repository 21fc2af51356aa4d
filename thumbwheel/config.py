"""One frozen tree of settings: a TOML file, then dotted overrides. An unknown key is an error.

    settings = load("thumbwheel.toml", overrides=["update.beta=0.2", "model.path=HuggingFaceTB/SmolLM2-135M-Instruct"])

Every field says its unit in its name and its meaning in its description; `thumbwheel settings` prints them all.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError, model_validator

from thumbwheel.config_online import GuardSettings as GuardSettings
from thumbwheel.config_online import KLSettings as KLSettings
from thumbwheel.config_online import OnlineSettings as OnlineSettings
from thumbwheel.config_rewards import CompositeSettings as CompositeSettings
from thumbwheel.config_rewards import RewardTermSettings as RewardTermSettings
from thumbwheel.config_train import FREE_SETTINGS as FREE_SETTINGS
from thumbwheel.config_train import TrainSettings as TrainSettings
from thumbwheel.errors import NotFound, SettingError, did_you_mean, explain
from thumbwheel.records import Origin, digest_of
from thumbwheel.section import Count as Count
from thumbwheel.section import Positive as Positive
from thumbwheel.section import Section as Section
from thumbwheel.section import Share as Share


class StoreSettings(Section):
    """Where records and results rest."""

    url: str = Field("sqlite:///thumbwheel.db", description="SQLAlchemy URL; one SQLite file by default")
    folder: Path = Field(Path("thumbwheel-data"), description="snapshots, checkpoints, versions, reports")
    orphan_after_h: Positive = Field(
        24.0, description="hours after which feedback without a target is listed as orphan"
    )


class ServerSettings(Section):
    """The HTTP server."""

    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(8321, ge=0, le=65535, description="port to listen on; 0 lets the system choose")
    max_body_bytes: Count = Field(8_000_000, description="largest request body accepted")
    max_batch: Count = Field(1000, description="most records in one batch request")
    write_timeout_s: Positive = Field(30.0, description="longest wait for the store to confirm a write, then 503")
    shutdown_timeout_s: Count = Field(10, description="longest wait for open requests when the server stops")
    allow_origins: tuple[str, ...] = Field((), description="other sites whose pages may call the API; '*' is any")
    kinds: tuple[str, ...] = Field((), description="feedback kinds of your own to accept, as 'module:attr'")


class NoiseRule(Section):
    """One rule that voids feedback: where `test` holds for `field` of the value, the feedback does not count.

    `test` is a name in `thumbwheel.collect.noise.tests`, or "module:attr". `bound` is what the test compares with.
    """

    kind: str = Field(description="feedback kind the rule looks at; '*' is every kind")
    test: str = Field(description="below, above, equals, blank, always, same_as_answer, not_shown, or 'module:attr'")
    field: str = Field("", description="field of the feedback's value; empty: the test needs none")
    bound: float | str | bool | None = Field(None, description="what the field is compared with")
    reason: str = Field(min_length=1, description="what the account calls it")


NOISE_RULES = (
    NoiseRule(kind="edit", test="blank", field="text", reason="empty edit"),
    NoiseRule(kind="edit", test="same_as_answer", field="text", reason="edit equals the answer"),
    NoiseRule(kind="choice", test="not_shown", field="chosen", reason="choice is not among what was shown"),
    NoiseRule(kind="copy", test="below", field="share", bound=0.05, reason="copied under 5 % of the answer"),
    NoiseRule(kind="comment", test="always", reason="comment only, no verdict"),
)


class FeedbackSettings(Section):
    """Which signals count, and for how much. Rules are data: see `noise_rules`."""

    weights: dict[str, float] = Field(default_factory=dict, description="weight per feedback kind, over the kind's own")
    noise_rates: dict[str, float] = Field(default_factory=dict, description="noise rate per kind, over the kind's own")
    role_weights: dict[str, float] = Field(
        default={"end_user": 1.0, "practitioner": 2.0, "expert": 4.0}, description="weight per role (three tiers)"
    )
    use_implicit: bool = Field(False, description="let implicit signals (dwell, copy, …) into training data")
    min_dwell_s: float = Field(2.0, ge=0, description="a dwell under this is void")
    max_dwell_s: Positive = Field(1800.0, description="a dwell over this is void: the page was left open")
    noise_rules: tuple[NoiseRule, ...] = Field(NOISE_RULES, description="what is void, beside the two dwell bounds")
    min_margin: float = Field(
        0.25, gt=0, le=2, description="two rated answers to one prompt make a pair when their labels differ by this"
    )
    demonstrate_from: float = Field(
        0.9, ge=-1, le=1, description="answers whose mean label is at least this are demonstrations too"
    )
    max_dropped_share: Share = Field(0.5, description="fail a round when more rows than this share are dropped")

    def rules(self) -> tuple[NoiseRule, ...]:
        """Every noise rule in force: the two dwell bounds, then `noise_rules`."""
        low, high = self.min_dwell_s, self.max_dwell_s
        dwell = (
            NoiseRule(kind="dwell", test="below", field="dwell_s", bound=low, reason=f"dwell under {low:g} s"),
            NoiseRule(kind="dwell", test="above", field="dwell_s", bound=high, reason=f"dwell over {high:g} s"),
        )
        return dwell + self.noise_rules


class RedactSettings(Section):
    """Personal details taken out of text on the way in."""

    enabled: bool = Field(False, description="redact everything that is stored or imported")
    remove: tuple[Literal["email", "card", "phone"], ...] = Field(
        ("email", "card", "phone"), description="which built-in patterns; each match becomes its name in angle brackets"
    )
    patterns: dict[str, str] = Field(default_factory=dict, description="own regular expressions: name -> pattern")


class ModelSettings(Section):
    """The language model, its adapters and its limits."""

    path: str = Field("smollm2-135m-instruct", description="hub id, local folder, GGUF file, or the carried demo model")
    tokenizer: str | None = Field(None, description="tokenizer path where it differs from the model's")
    dtype: Literal["float32", "bfloat16", "auto"] = Field("auto", description="of frozen weights and of compute")
    device: str = Field("auto", description="cpu, cuda, cuda:1, mps, or auto")
    adapter: Literal["lora", "full"] = Field("lora", description="train adapters or all weights")
    lora_r: Count = Field(16, description="rank of the adapters")
    lora_alpha: Positive = Field(32.0, description="scale of the adapters is alpha / r")
    lora_targets: tuple[str, ...] = Field((), description="module names; empty: every linear layer of the trunk")
    gradient_checkpointing: bool = Field(False, description="recompute activations in the backward pass")
    max_length: Count = Field(1024, description="tokens of prompt and response together")
    overlong: Literal["drop", "keep_start", "keep_end"] = Field("drop", description="what becomes of a longer row")
    trust_remote_code: bool = Field(False, description="run code that ships with a hub model")


class SampleSettings(Section):
    """How answers are sampled."""

    temperature: float = Field(0.7, ge=0, description="0 is greedy")
    top_p: Share = Field(1.0, description="nucleus; the log-probability is renormalised to it")
    top_k: int = Field(0, ge=0, description="0 is off")
    max_new_tokens: Count = Field(96, description="longest answer sampled, tokens")
    stop: tuple[str, ...] = Field((), description="strings that end an answer")
    batch_size: Count = Field(16, description="answers sampled side by side")


class EngineSettings(Section):
    """What answers are sampled with."""

    kind: str = Field("own", description="own, llama_cpp, vllm, or 'module:attr'")
    gguf: Path | None = Field(None, description="llama_cpp: the GGUF file; empty: the one that model.path names")
    threads: int = Field(0, ge=0, description="llama_cpp: processor threads; 0: as many as torch uses")
    vllm_memory_share: Annotated[float, Field(gt=0, le=1)] = Field(
        0.5, description="vllm: share of the accelerator's memory it may take; training needs the rest"
    )


class RewardSettings(TrainSettings):
    """The reward model of a round."""

    enabled: bool = Field(True, description="train a reward model in the round")
    fresh_share: float = Field(
        0.3, ge=0, lt=1, description="what pairs of the live version's answers shall weigh of all, where there are any"
    )
    fresh_weight_cap: float = Field(4.0, ge=1, description="such a pair's weight is multiplied by no more than this")
    members: Count = Field(1, description="more: an ensemble, each on its own draw of the prompts and its own seed")
    lr: Positive = Field(5e-5, description="peak learning rate")
    batch_size: Count = Field(16, description="prompts (all pairs of a prompt together) an update")
    weight_decay: float = Field(0.001, ge=0)
    trunk: Literal["encoder", "language_model"] = Field(
        "encoder", description="frozen sentence encoder, or a causal LM"
    )
    encoder: str = Field("all-minilm-l6-v2", description="hub id, folder, or the carried sentence encoder")
    temperature: Positive = Field(1.0, description="τ of -log σ((r_chosen - r_rejected)/τ)")
    centring: float = Field(0.01, ge=0, description="weight of (r_chosen + r_rejected)², which keeps scores near 0")
    normalise: bool = Field(True, description="shift and scale scores to mean 0, deviation 1 on the training answers")
    encoder_recipes: tuple[str, ...] = Field(
        (), description="encoder trunk: choices of features; empty: every known one"
    )
    encoder_members: Count = Field(5, description="encoder trunk: how many of the best choices are averaged")
    encoder_folds: int = Field(5, ge=2, description="encoder trunk: folds by prompt that choices are judged on")


class UpdateSettings(TrainSettings):
    """The policy update of a round."""

    method: Literal["dpo", "sft", "online", "picks"] = Field(
        "dpo", description="from pairs or labels, demonstrations, fresh answers, or picked groups (both: see 'online')"
    )
    epochs: Count = 2
    loss: str = Field("sigmoid", description="a name in thumbwheel.formulas.preference.preference_losses")
    beta: Positive = Field(0.1, description="strength of the pull to the reference")
    label_smoothing: float | None = Field(None, ge=0, lt=0.5, description="cdpo and robust only")
    simpo_gamma: float | None = Field(None, ge=0, description="simpo only: target margin")
    desirable_weight: float | None = Field(None, gt=0, description="kto only")
    undesirable_weight: float | None = Field(None, gt=0, description="kto only")
    nll_weight: float = Field(0.0, ge=0, description="adds this times the chosen answer's mean token loss")


class EvalSettings(Section):
    """How the new policy is measured against its parent."""

    judge: str = Field("reward_model", description="reward_model, rule 'module:attr', or people")
    judge_origin: Origin | None = Field(None, description="what the report says the judge is, where it is a rule")
    prompts: Count = Field(54, description="held-out prompts, at most")
    holdout_share: Share = Field(0.3, description="share of prompts that no training row may come from")
    samples_per_prompt: Count = Field(1, description="answers a prompt and policy")
    temperature: float = Field(0.7, ge=0)
    confidence: Annotated[float, Field(gt=0, lt=1)] = 0.95
    bootstrap_samples: Count = 2000


class GateSettings(Section):
    """Every one must hold for a promotion."""

    min_win_rate_low: Share = Field(0.5, description="the interval's lower end must be above this")
    max_nats_per_token_drop: Positive = Field(
        0.25, description="mean log-probability per token of new answers under the reference may fall by this much"
    )
    max_repetition_rise: float = Field(
        0.0, ge=0, description="rise of the repetition share over the parent's, see margin"
    )
    repetition_margin: Share = Field(0.02, description="noise allowed on repetition")
    max_length_ratio: Positive = Field(2.0, description="mean length of new answers over the parent's, either way")
    min_reward_accuracy_low: Share | None = Field(None, description="lower end of the reward model's held-out accuracy")


class RoundSettings(Section):
    """One turn of the wheel."""

    data: Literal["new", "all"] = Field(
        "new", description="feedback that no live version has learned from yet, or all of it"
    )
    min_preferences: Count = Field(16, description="refuse to train on fewer pairs")
    progress: bool = Field(True, description="draw progress bars")
    samples_in_report: Count = Field(40, description="answers shown side by side in the report")


class Settings(Section):
    """The whole tree."""

    seed: int = Field(0, ge=0, description="of everything random")
    store: StoreSettings = Field(default_factory=StoreSettings)
    server: ServerSettings = Field(default_factory=ServerSettings)
    feedback: FeedbackSettings = Field(default_factory=FeedbackSettings)
    redact: RedactSettings = Field(default_factory=RedactSettings)
    model: ModelSettings = Field(default_factory=ModelSettings)
    sample: SampleSettings = Field(default_factory=SampleSettings)
    engine: EngineSettings = Field(default_factory=EngineSettings)
    reward: RewardSettings = Field(default_factory=RewardSettings)
    update: UpdateSettings = Field(default_factory=UpdateSettings)
    online: OnlineSettings = Field(default_factory=OnlineSettings)
    evals: EvalSettings = Field(default_factory=EvalSettings)
    gates: GateSettings = Field(default_factory=GateSettings)
    round: RoundSettings = Field(default_factory=RoundSettings)

    @model_validator(mode="after")
    def _full_weights_need_care(self) -> Settings:
        if self.model.adapter == "full" and self.model.dtype == "bfloat16":
            raise ValueError(
                "model.adapter='full' needs float32 master weights; set model.dtype to 'float32' or 'auto'"
            )
        return self

    @model_validator(mode="after")
    def _no_judge_of_its_own_teaching(self) -> Settings:
        learned_from = any(term.asks_reward_model for term in self.online.reward.terms)
        if self.update.method == "online" and learned_from and self.evals.judge == "reward_model":
            raise ValueError(
                "with update.method='online' the policy learns from the reward model, which then cannot judge it: set "
                "evals.judge to 'people' or to a rule ('module:attr')"
            )
        return self

    def digest(self) -> str:
        """SHA-256 of every value that can change a result: a round goes on with other memory settings, and with no others."""
        free: dict[str, Any] = {
            "server": True,
            "round": {"progress"},
            "model": {"gradient_checkpointing"},
            "reward": set(FREE_SETTINGS),
            "update": set(FREE_SETTINGS),
            "online": set(FREE_SETTINGS),
        }
        return digest_of(self.model_dump(mode="json", exclude=free))


def load(path: str | Path | None = None, *, overrides: Iterable[str] = ()) -> Settings:
    """Settings from a TOML file (all defaults without one) and `section.key=value` overrides, the later ones winning.

    Raises NotFound for a missing file; SettingError for bad TOML, an unknown key or a value out of range.
    """
    tree: dict[str, Any] = {}
    if path is not None:
        try:
            tree = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise NotFound(
                f"There is no settings file '{path}'. Write one, or leave it out to use the defaults."
            ) from None
        except OSError as error:
            raise SettingError(f"The settings file '{path}' cannot be read: {error.strerror or error}.") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise SettingError(f"The settings file '{path}' is not valid TOML: {error}.") from None
    for override in overrides:
        _put(tree, override)
    return from_tree(tree)


def from_tree(tree: Mapping[str, Any]) -> Settings:
    """Settings from a nested mapping. Raises SettingError, naming the dotted key, what is allowed and what was got."""
    try:
        return Settings.model_validate(tree)
    except ValidationError as error:
        raise SettingError(_explain(error)) from None


def _put(tree: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise SettingError(explain("An override is malformed.", allowed="section.key=value", got=override))
    *parents, last = key.strip().split(".")
    node = tree
    for parent in parents:
        child = node.setdefault(parent, {})
        if not isinstance(child, dict):
            raise SettingError(f"The override '{override}' goes below '{parent}', which is a value and no section.")
        node = child
    node[last] = _toml_value(text.strip())


def _toml_value(text: str) -> Any:
    """A TOML value; bare words are strings, so that `model.path=org/name` needs no quotes in a shell."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _explain(error: ValidationError) -> str:
    lines = []
    for item in error.errors():
        key = ".".join(map(str, item["loc"])) or "settings"
        if item["type"] == "extra_forbidden":
            known = _known_keys(item["loc"][:-1])
            hint = did_you_mean(str(item["loc"][-1]), known)
            lines.append(f"There is no setting '{key}'.{hint} Known here: {', '.join(known)}.")
        else:
            lines.append(
                explain(
                    f"The '{key}' setting is not valid: {item['msg'].removeprefix('Value error, ')}.",
                    got=item.get("input"),
                )
            )
    return "\n".join(lines)


def _known_keys(path: tuple[int | str, ...]) -> list[str]:
    section: type[BaseModel] = Settings
    for part in path:
        field = section.model_fields.get(str(part))
        if field is None or not (isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)):
            return []
        section = field.annotation
    return sorted(section.model_fields)
