"""KL controllers on a plant: a simulated policy whose KL answers to β, late and with noise. And their settings and state."""

from __future__ import annotations

import json
import math
import random
from statistics import fmean
from typing import Any

import pytest

from thumbwheel.config import KLSettings
from thumbwheel.errors import CheckpointError, RegistryError, SettingError, TrainingError
from thumbwheel.train.kl_control import KLController, kl_controllers, open_controller

RESPONSES = 512
PER_RESPONSE = {"target_per_response_nats": 6.0}
PER_TOKEN = {"target_per_token_nats": 0.01}


def run(controller: KLController, *, pull: float, updates: int, lag: float = 0.4, noise: float = 0.1) -> list[float]:
    """KL after each update of a policy that drifts to pull/β, a share `lag` of the way at a time, and is measured badly.

    The state goes through JSON every time, as it does through checkpoints.
    """
    dice = random.Random(3)
    kl, seen = 0.0, []
    for _ in range(updates):
        kl += lag * (pull / controller.coefficient - kl)
        controller = controller.after(kl * (1 + noise * dice.gauss(0, 1)), responses=RESPONSES)
        controller = controller.restored(json.loads(json.dumps(controller.state())))
        seen.append(kl)
    return seen


@pytest.mark.parametrize(
    ("name", "updates", "extra"),
    [("ziegler", 700, {}), ("exponential", 200, {}), ("band", 200, {}), ("pid", 250, {})],
)
@pytest.mark.parametrize("first", [0.02, 0.3, 3.0])
@pytest.mark.parametrize("unit", ["response", "token"])
def test_settles_at_its_target(name: str, updates: int, extra: dict[str, Any], first: float, unit: str) -> None:
    """P4: from a β far too small, right and far too large: within 5 % of the target on average, the band within its band."""
    target = PER_RESPONSE if unit == "response" else PER_TOKEN
    if name == "exponential" and unit == "token":
        extra = {"exponential_gain_per_nat": 20.0}
    settings = KLSettings(controller=name, coefficient=first, **target, **extra)
    (aim,) = target.values()
    controller = open_controller(settings, updates=updates)
    assert controller.unit == unit
    late = run(controller, pull=0.3 * aim, updates=updates)[-50:]  # β = .3 holds the target
    if name == "band":
        assert all(0.5 * aim <= kl <= 2 * aim for kl in late)
    else:
        assert fmean(late) == pytest.approx(aim, rel=0.05)
        assert max(late) < 1.5 * aim
        assert min(late) > 0.5 * aim


@pytest.mark.parametrize("name", ["ziegler", "exponential", "band", "pid"])
def test_follows_a_policy_that_begins_to_pull_harder(name: str) -> None:
    """P4: the pull grows fivefold in mid-run (a reward that can be hacked); KL comes back."""
    controller = open_controller(KLSettings(controller=name, coefficient=0.3, **PER_RESPONSE), updates=2000)
    kl, late = 6.0, []
    for update in range(1400):
        kl += 0.4 * ((1.8 if update < 200 else 9.0) / controller.coefficient - kl)
        controller = controller.after(kl, responses=RESPONSES)
        late.append(kl)
    assert max(late[200:300]) > 12.0
    assert 3.0 <= min(late[-50:]) <= max(late[-50:]) <= 12.0


def test_fixed_and_cosine_do_not_look_at_kl() -> None:
    """P4: KL follows their β: c/β with c = .6 and β = .1; at the cosine's end .6/.05."""
    assert run(open_controller(KLSettings(), updates=60), pull=0.6, updates=60)[-1] == pytest.approx(6.0, rel=1e-3)
    cosine = open_controller(KLSettings(controller="cosine"), updates=60)
    assert run(cosine, pull=0.6, updates=90)[-1] == pytest.approx(12.0, rel=1e-3)


def test_a_sum_does_not_wind_up_at_a_bound() -> None:
    """P4: a long time at a bound of β, then the other way: PID leaves it at once, not after as long a time."""
    settings = KLSettings(controller="pid", coefficient=0.1, coefficient_bounds=(0.01, 1.0), **PER_RESPONSE)
    controller = open_controller(settings, updates=600)
    for _ in range(500):
        controller = controller.after(60.0, responses=8)
    assert controller.coefficient == 1.0
    for _ in range(40):
        controller = controller.after(0.0, responses=8)
    assert controller.coefficient < 0.2
    for _ in range(500):
        controller = controller.after(0.0, responses=8)
    assert controller.coefficient == 0.01
    for _ in range(40):
        controller = controller.after(12.0, responses=8)
    assert controller.coefficient > 0.05


@pytest.mark.parametrize("name", ["ziegler", "exponential", "band", "pid"])
@pytest.mark.parametrize("kl", [1e300, -1e300, 0.0])
def test_a_coefficient_stays_within_its_bounds(name: str, kl: float) -> None:
    """P4: whatever comes in, however many answers an update: never 0, negative, infinite."""
    settings = KLSettings(controller=name, coefficient=0.1, coefficient_bounds=(0.01, 2.0), **PER_RESPONSE)
    controller = open_controller(settings, updates=9)
    for _ in range(300):
        controller = controller.after(kl, responses=100_000)
        assert 0.01 <= controller.coefficient <= 2.0
    assert controller.coefficient == (2.0 if kl > 6 else 0.01)


@pytest.mark.parametrize("name", ["ziegler", "exponential", "band", "pid"])
def test_no_answers_say_nothing_and_no_number_is_an_error(name: str) -> None:
    """P4: an update whose answers were all masked has a KL of 0 that is not one; NaN names what to do."""
    controller = open_controller(KLSettings(controller=name, coefficient=0.1, **PER_RESPONSE), updates=9)
    assert controller.after(0.0, responses=0) == controller
    for kl in (math.nan, math.inf):
        with pytest.raises(TrainingError, match=r"not finite.*per response"):
            controller.after(kl, responses=8)


@pytest.mark.parametrize("name", list(kl_controllers))
def test_a_restored_controller_goes_on_as_if_never_stopped(name: str) -> None:
    """P3, X4: bit for bit; and a state that is not its own is refused."""
    target = PER_RESPONSE if name not in ("fixed", "cosine") else {}
    settings = KLSettings(controller=name, **target)
    straight = open_controller(settings, updates=20)
    for kl in (9.0, 3.0, 5.0, 14.0):
        straight = straight.after(kl, responses=64)
    resumed = open_controller(settings, updates=20).restored(json.loads(json.dumps(straight.state())))
    assert resumed == straight
    assert resumed.after(7.7, responses=64) == straight.after(7.7, responses=64)
    good = straight.state()
    other = "Band" if good["controller"] != "Band" else "PID"
    for bad in (
        {},
        {**good, "controller": other},
        {**good, "coefficient": "much"},
        {**good, "coefficient": None},
        {**good, "coefficient": math.nan},
        {**good, "beta": 1.0},
        {k: v for k, v in good.items() if k != "coefficient"},
    ):
        with pytest.raises(CheckpointError, match="KL controller"):
            straight.restored(bad)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"target": 6.0}, "target_per_response_nats.*target_per_token_nats"),
        ({"controller": "pid"}, "needs a target.*target_per_response_nats or target_per_token_nats"),
        ({"controller": "pid", **PER_RESPONSE, **PER_TOKEN}, "one target, not two"),
        ({"controller": "pid", "target_per_token_nats": -0.1}, "target_per_token_nats"),
        ({"controller": "pid", "target_per_token_nats": math.inf}, "finite"),
        (PER_TOKEN, "would be ignored"),
        ({"controller": "cosine", **PER_RESPONSE}, "would be ignored"),
        ({"controller": "cosine", "coefficient": 0.3}, "cosine_warmup_coefficient"),
        ({"controller": "band", **PER_TOKEN, "pid_i": 0.2}, "belongs to the controller 'pid'"),
        ({"cosine_end": 0.2}, "belongs to the controller 'cosine'"),
        ({"controller": "exponential", **PER_TOKEN}, "exponential_gain_per_nat"),
        ({"controller": "ziegler", **PER_RESPONSE, "coefficient": 0.0}, "coefficient_bounds"),
        ({"coefficient": -0.1}, "greater than or equal to 0"),
        ({"coefficient_bounds": (1.0, 0.1)}, "must rise"),
        ({"place": "loss"}, "k1.*regularises nothing.*'k2'.*'k3'"),
        ({"estimator": "k4"}, "k1"),
        ({"band_high": 0.9}, "greater than 1"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(given: dict[str, Any], says: str) -> None:
    """P4: a target without a unit, none, two, one that is ignored; an option of another controller; k1 as a loss."""
    with pytest.raises(ValueError, match=says):
        KLSettings.model_validate(given)


def test_settings_survive_being_written_and_read() -> None:
    """P4: what `model_dump` writes is accepted again, defaults of other controllers and all."""
    for name in kl_controllers:
        target = PER_RESPONSE if name not in ("fixed", "cosine") else {}
        settings = KLSettings(controller=name, **target)
        assert KLSettings.model_validate_json(settings.model_dump_json()) == settings
    assert KLSettings(place="loss", estimator="k3").place == "loss"


def own(settings: KLSettings, *, updates: int) -> KLController:
    """A controller from elsewhere: the fixed one, at half."""
    return open_controller(KLSettings(coefficient=settings.coefficient / 2), updates=updates)


def nothing(settings: KLSettings, *, updates: int) -> float:
    """No controller at all."""
    return 0.1


def test_a_controller_of_ones_own() -> None:
    """P4: by "module:attr"; a name that is nothing, and a thing that is no controller, say so."""
    opened = open_controller(KLSettings(controller=f"{__name__}:own", coefficient=0.4), updates=3)
    assert opened.coefficient == 0.2
    with pytest.raises(RegistryError, match="Did you mean 'ziegler'"):
        open_controller(KLSettings(controller="zigler"), updates=3)
    with pytest.raises(SettingError, match="coefficient, clip_scale"):
        open_controller(KLSettings(controller=f"{__name__}:nothing"), updates=3)
