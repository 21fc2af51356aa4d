"""Several processes give what one gives (X2): gradients are summed, order and totals are the same everywhere."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import torch
from small_task import Bag, BagTask, bag_units, weights_of

from thumbwheel.config import TrainSettings
from thumbwheel.train.loop import fit

RUN = """
import sys
from pathlib import Path
import torch
sys.path.insert(0, sys.argv[2])
from small_task import Bag, BagTask, bag_units, weights_of
from thumbwheel.config import TrainSettings
from thumbwheel.train.loop import fit
settings = TrainSettings(lr=0.05, batch_size=4, epochs=2, tokens_per_micro_batch=8, patience=5)
model = Bag()
folder = Path(sys.argv[1])
result = fit(BagTask(model, bag_units(10), bag_units(3, start=40)), settings, folder, progress=False)
rank = torch.distributed.get_rank()
torch.save({"weights": weights_of(model), "metrics": result.metrics}, folder / f"rank{rank}.pt")
torch.distributed.destroy_process_group()
"""


def test_two_processes_are_one(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    here = str(Path(__file__).parent)
    made = {
        "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
        "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", RUN, str(tmp_path / "two"), here],
            env={**os.environ, **made, "RANK": rank, "LOCAL_RANK": rank},
        )
        for rank in ("0", "1")
    ]
    assert [process.wait(200) for process in processes] == [0, 0]

    alone = Bag()
    settings = TrainSettings(lr=0.05, batch_size=4, epochs=2, tokens_per_micro_batch=8, patience=5)
    one = fit(BagTask(alone, bag_units(10), bag_units(3, start=40)), settings, tmp_path / "one", progress=False)
    for rank in (0, 1):
        two = torch.load(tmp_path / "two" / f"rank{rank}.pt", weights_only=True)
        for name, value in weights_of(alone).items():
            assert torch.allclose(value, two["weights"][name], atol=1e-5), name
        assert abs(two["metrics"]["heldout_loss"] - one.metrics["heldout_loss"]) < 1e-5
        assert abs(two["metrics"]["loss"] - one.metrics["loss"]) < 1e-5
