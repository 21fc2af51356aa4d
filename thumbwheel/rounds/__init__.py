"""One round of the wheel: gather, reward, update, measure, promote or hold."""

from thumbwheel.rounds.run import RoundResult, base_version, model_of, run
from thumbwheel.rounds.watch import Shown, Silent, Watch

__all__ = ["RoundResult", "Shown", "Silent", "Watch", "base_version", "model_of", "run"]
