"""The peer of bench-ingest: FastAPI and sqlite3 as a plain program would use them, one durable commit a request.

It does less than the server it is compared with: no kinds, no joining, no digest to tell a replay from a conflict.
"""

from __future__ import annotations

import sqlite3
import sys
import threading
from typing import Any

import uvicorn
from fastapi import FastAPI, HTTPException
from pydantic import AwareDatetime, BaseModel

from thumbwheel.web.serve import listen, url_of

SCHEMA = "CREATE TABLE IF NOT EXISTS feedback (id TEXT PRIMARY KEY, target TEXT, who TEXT, at TEXT, record TEXT)"


class Item(BaseModel):
    """One feedback."""

    id: str
    target: dict[str, str]
    kind: str
    value: dict[str, Any]
    who: str | None = None
    at: AwareDatetime


def create_peer(path: str) -> FastAPI:
    """The app. Each worker thread has a connection of its own, in WAL mode with a disk sync on every commit."""
    app = FastAPI()
    local = threading.local()

    def connection() -> sqlite3.Connection:
        if not hasattr(local, "connection"):
            local.connection = sqlite3.connect(path, timeout=60)
            local.connection.execute("PRAGMA journal_mode=WAL")
            local.connection.execute("PRAGMA synchronous=FULL")
            local.connection.execute(SCHEMA)
        return local.connection  # type: ignore[no-any-return]

    @app.post("/v1/feedback", status_code=201)
    def add(item: Item) -> dict[str, str]:
        row = (item.id, str(item.target), item.who, item.at.isoformat(), item.model_dump_json())
        try:
            with connection() as transaction:
                transaction.execute("INSERT INTO feedback VALUES (?, ?, ?, ?, ?)", row)
        except sqlite3.IntegrityError:
            raise HTTPException(409, "the id is taken") from None
        return {"id": item.id, "status": "stored"}

    return app


def main(overrides: list[str]) -> None:
    """Serve the SQLite file that 'store.url=sqlite:///FILE' names; print the URL first."""
    path = next(item for item in overrides if item.startswith("store.url=")).removeprefix("store.url=sqlite:///")
    listener = listen("127.0.0.1", 0)
    print(url_of(listener), flush=True)
    config = uvicorn.Config(create_peer(path), log_level="warning", access_log=False)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main(sys.argv[1:])
