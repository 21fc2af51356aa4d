"""A real server in a process of its own, for tests that stop or kill it.

with server_process(tmp_path / "t.db") as server:
    httpx.get(server.url + "/health")
    server.kill()
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from thumbwheel.errors import ThumbwheelError

_PROGRAM = """
import sys
from thumbwheel.config import load
from thumbwheel.web.serve import serve
serve(load(overrides=sys.argv[1:]), ready=lambda url: print(url, flush=True))
"""


@dataclass(frozen=True)
class ServerProcess:
    """A running server: where it answers, and its process."""

    url: str
    process: subprocess.Popen[str]

    def kill(self) -> None:
        """SIGKILL, and wait until the process is gone."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> int:
        """SIGTERM; the exit status once the process is gone."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)


@contextmanager
def server_process(
    database: Path, *, port: int = 0, overrides: Sequence[str] = (), program: str = _PROGRAM
) -> Iterator[ServerProcess]:
    """Serve the SQLite file `database` until the block ends. Raises ThumbwheelError with what a failed start printed.

    `overrides` are settings ("server.max_batch=10"). `program` is Python text that prints its URL when it is ready.
    """
    settings = [f"store.url=sqlite:///{database}", f"server.port={port}", *overrides]
    command = [sys.executable, "-c", program, *settings]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        url = process.stdout.readline().strip() if process.stdout is not None else ""
        if not url:
            raise ThumbwheelError(f"The server did not start (exit status {process.wait()}). Its own message is above.")
        yield ServerProcess(url, process)
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
