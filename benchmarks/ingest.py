"""The write path: durable single POSTs, before and after the file is full, against a plain handler; then kill -9.

    python -m benchmarks.ingest            # or: make bench-ingest

Real server processes on real SQLite files, over loopback. Ours with a small file, ours with a full file and the peer take
turns within the same seconds, so that a disturbed machine disturbs all three alike.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.table import Benchmark, Row, benchmark
from thumbwheel.stores.sql import open_store
from thumbwheel.testing.server import ServerProcess, server_process

CLIENTS = (1, 8, 64)
TURNS = 6
TURN_S = 1.0
BATCH = 1000
AT = "2026-01-31T12:00:00Z"
PEER = "import sys; from benchmarks.ingest_peer import main; main(sys.argv[1:])"
QUESTION = "How do I undo my last commit without losing the changes? "
ANSWER = "Run `git reset --soft HEAD~1`; the commit goes, your changes stay staged. "


@dataclass
class Load:
    """What the clients of one server saw, by number of clients: seconds a request; and the ids that were confirmed.

    `cpu_s` is the processor time of the server process: unlike the rest it hardly changes when others use the machine.
    """

    latencies_s: dict[int, list[float]] = field(default_factory=dict)
    busy_s: dict[int, float] = field(default_factory=dict)
    cpu_s: dict[int, float] = field(default_factory=dict)
    confirmed: set[str] = field(default_factory=set)

    def percentile_ms(self, clients: int, share: float) -> float:
        """The latency that `share` of the requests stayed under."""
        return (
            1000 * statistics.quantiles(self.latencies_s[clients], n=1000, method="inclusive")[round(share * 1000) - 1]
        )

    def per_s(self, clients: int) -> float:
        """Confirmed events a second."""
        return len(self.latencies_s[clients]) / self.busy_s[clients]

    def cpu_ms(self, clients: int) -> float:
        """Processor time of the server for one event."""
        return 1000 * self.cpu_s[clients] / len(self.latencies_s[clients])


def thumbs(name: str, steps: int) -> Iterator[tuple[str, bytes]]:
    """(id, JSON) of ever new thumbs on the steps that `fill` stores."""
    for n in count():
        id = f"{name}-{n}"
        step = {"step_id": f"s-{n % steps}"}
        row = {"id": id, "target": step, "kind": "thumb", "value": {"up": n % 3 > 0}, "who": f"u-{n % 997}", "at": AT}
        yield id, json.dumps(row).encode()


async def post(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str, body: bytes) -> tuple[int, bytes]:
    """One request on an open connection: (status, body). A client this plain leaves the processor to the server."""
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    answer = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = int(answer.partition(b"content-length:")[2].split(b"\r\n", 1)[0])
    return int(answer[9:12]), await reader.readexactly(length)


async def clients(url: str, rows: Iterator[tuple[str, bytes]], load: Load, *, n: int, seconds: float) -> None:
    """`n` connections post one row after the other for so long, or until the server is gone."""
    address = urlsplit(url)
    latencies = load.latencies_s.setdefault(n, [])
    end = time.perf_counter() + seconds

    async def one() -> None:
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        try:
            while (start := time.perf_counter()) < end:
                id, body = next(rows)
                status, answer = await post(reader, writer, "/v1/feedback", body)
                if status != 201:
                    raise RuntimeError(f"{url} answered {status}: {answer.decode()}")
                latencies.append(time.perf_counter() - start)
                load.confirmed.add(id)
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()

    start = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(n)))
    load.busy_s[n] = load.busy_s.get(n, 0.0) + time.perf_counter() - start


async def fill(url: str, events: int, confirmed: set[str]) -> float:
    """Half steps, half thumbs, in batches; events a second."""
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    thumb_rows = thumbs("fill", events // 2)
    start = time.perf_counter()
    for first in range(0, events // 2, BATCH):
        ids = range(first, min(first + BATCH, events // 2))
        for plural, rows in (("steps", [_step(n) for n in ids]), ("feedback", [next(thumb_rows) for _ in ids])):
            await post_batch(reader, writer, plural, rows, confirmed)
    writer.close()
    return events / (time.perf_counter() - start)


async def settle(url: str, log: Path, most: int, confirmed: set[str]) -> None:
    """Send up to `most` thumbs in batches, until SQLite's write-ahead log grows no more and is written over again.

    A commit that makes the log longer costs more; the full file has that behind it, so the small one must have too.
    """
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    rows = thumbs("settle", 1000)
    for _ in range(0, most, BATCH):
        size = log.stat().st_size
        await post_batch(reader, writer, "feedback", [next(rows) for _ in range(BATCH)], confirmed)
        if log.stat().st_size == size:
            break
    writer.close()


async def post_batch(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    plural: str,
    rows: list[tuple[str, bytes]],
    confirmed: set[str],
) -> None:
    """One batch, which must be stored whole."""
    body = b'{"%s":[%s]}' % (plural.encode(), b",".join(row for _, row in rows))
    status, answer = await post(reader, writer, f"/v1/{plural}/batch", body)
    if status != 200:
        raise RuntimeError(f"the batch was answered {status}: {answer[:500]!r}")
    confirmed.update(id for id, _ in rows)


def _step(n: int) -> tuple[str, bytes]:
    row = {
        "id": f"s-{n}",
        "episode_id": f"e-{n}",
        "task_id": f"t-{n}",
        "state": [{"role": "user", "content": QUESTION * (1 + n % 4)}],
        "action": {"role": "assistant", "content": ANSWER * (1 + n % 7)},
        "policy_version": f"p-{n // 50_000}",
        "at": AT,
    }
    return row["id"], json.dumps(row).encode()  # type: ignore[return-value]


def sync_ms(folder: Path) -> tuple[float, float]:
    """(median, 99th percentile) of appending 4 kB and syncing, in ms: what the disk itself asks for one commit."""
    took = []
    with (folder / "sync").open("wb", buffering=0) as file:
        for _ in range(200):
            start = time.perf_counter()
            file.write(b"x" * 4096)
            os.fsync(file.fileno())
            took.append(1000 * (time.perf_counter() - start))
    return statistics.median(took), statistics.quantiles(took, n=100)[98]


def cpu_s(process: int) -> float:
    """Processor time a process has used, from /proc/PID/stat (fields 14 and 15, proc(5)); NaN where there is none."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return float("nan")
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def turn(server: ServerProcess, rows: Iterator[tuple[str, bytes]], load: Load, *, n: int, seconds: float) -> None:
    """One server's turn with `n` clients."""
    before = cpu_s(server.process.pid)
    asyncio.run(clients(server.url, rows, load, n=n, seconds=seconds))
    load.cpu_s[n] = load.cpu_s.get(n, 0.0) + cpu_s(server.process.pid) - before


def lost_after_kill(server: ServerProcess, file: Path, load: Load) -> int:
    """Post with 8 clients, kill -9 the server in the middle, open the file again: how many confirmed ids are missing."""

    async def until_killed() -> None:
        work = asyncio.create_task(clients(server.url, thumbs("kill", 1000), load, n=8, seconds=30))
        await asyncio.sleep(1.5)
        server.kill()
        await work

    asyncio.run(until_killed())
    store = open_store(f"sqlite:///{file}", create=False)
    try:
        there = {step.id for step in store.steps()} | {feedback.id for feedback in store.all_feedback()}
    finally:
        store.close()
    return len(load.confirmed - there)


def compare(bench: Benchmark, small: Load, full: Load, peer: Load, events: int) -> None:
    """Rows of the table: ours with a full file against the peer, and against ours with a small one."""
    for n in CLIENTS:
        some = f"{n} client{'s' if n > 1 else ''}"
        bench.add(
            Row(
                f"p50, {some}, {events} in the file", full.percentile_ms(n, 0.5), peer.percentile_ms(n, 0.5), unit="ms"
            ),
            Row(
                f"p99, {some}, {events} in the file",
                full.percentile_ms(n, 0.99),
                peer.percentile_ms(n, 0.99),
                unit="ms",
            ),
            Row(f"events a second, {some}, {events} in the file", full.per_s(n), peer.per_s(n), unit="/s"),
            Row(f"server CPU an event, {some}, {events} in the file", full.cpu_ms(n), peer.cpu_ms(n), unit="ms"),
            Row(f"p50, {some}, small file", small.percentile_ms(n, 0.5), unit="ms"),
            Row(f"p99, {some}, small file", small.percentile_ms(n, 0.99), unit="ms"),
            Row(f"events a second, {some}, small file", small.per_s(n), unit="/s"),
        )
    for n in CLIENTS:
        ratio = full.percentile_ms(n, 0.5) / small.percentile_ms(n, 0.5)
        bench.add(
            Row(
                f"p50 with {events} in the file over p50 of a small file, {n} clients",
                ratio,
                goal=1.3,
                goal_is="at_most",
                unit="x",
            )
        )


def run(events: int, folder: Path, *, turns: int = TURNS, turn_s: float = TURN_S) -> int:
    """The whole benchmark in `folder`; the exit status."""
    with benchmark("ingest", "durable single POSTs over HTTP (peer: FastAPI + sqlite3, one commit a POST)") as bench:
        small, full, peer = Load(), Load(), Load()
        with ExitStack() as stack:
            ours_small = stack.enter_context(server_process(folder / "small.db"))
            ours_full = stack.enter_context(server_process(folder / "full.db"))
            theirs = stack.enter_context(server_process(folder / "peer.db", program=PEER))
            asyncio.run(fill(ours_small.url, 2000, small.confirmed))
            filled_per_s = asyncio.run(fill(ours_full.url, events, full.confirmed))
            for server, load, name in ((ours_small, small, "small"), (ours_full, full, "full")):
                asyncio.run(settle(server.url, folder / f"{name}.db-wal", events // 2, load.confirmed))
            sides = [
                (ours_small, small, thumbs("small", 1000)),
                (ours_full, full, thumbs("full", events // 2)),
                (theirs, peer, thumbs("peer", 1000)),
            ]
            for n in CLIENTS:
                for shift in range(turns):
                    for server, load, rows in sides[shift % 3 :] + sides[: shift % 3]:  # nobody always goes first
                        turn(server, rows, load, n=n, seconds=turn_s)
            compare(bench, small, full, peer, events)
            bench.add(Row(f"filling to {events}, batches of {BATCH}", filled_per_s, unit="events/s"))
            lost = lost_after_kill(ours_full, folder / "full.db", full)
        bench.add(Row(f"lost after kill -9, of {len(full.confirmed)} confirmed", lost, goal=0, goal_is="at_most"))
        median, late = sync_ms(folder)
        bench.note(f"This disk takes {median:.2f} ms (p50), {late:.2f} ms (p99) to append 4 kB and sync it.")
    return bench.exit_code


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=200_000, help="rows in the full file")
    parser.add_argument("--folder", type=Path, default=Path("build"), help="where the databases are made (a real disk)")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="bench-ingest-") as folder:
        raise SystemExit(run(options.events, Path(folder).resolve()))


if __name__ == "__main__":
    main()
