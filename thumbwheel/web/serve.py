"""A running server: in the foreground (`serve`), or in a thread of this process (`running`).

A stop is graceful: open requests are answered, then the store writes what is queued and closes.
"""

from __future__ import annotations

import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI

from thumbwheel.config import Settings
from thumbwheel.errors import SettingError, ThumbwheelError
from thumbwheel.stores.sql import open_store
from thumbwheel.web.app import create_app

SWITCH_S = 0.0005
"""The event loop and the store's writer thread hand the interpreter to each other at least this often. Python's own 5 ms are
longer than a disk sync: under load every step of a commit would wait for the loop."""


def serve(settings: Settings, *, ready: Callable[[str], None] | None = None) -> None:
    """Serve the store of the settings until SIGINT or SIGTERM. `ready` gets the URL once connections are accepted.

    Raises SettingError where the address cannot be listened on; StoreError where the store cannot be opened.
    """
    sys.setswitchinterval(SWITCH_S)
    listener = listen(settings.server.host, settings.server.port)
    try:
        store = open_store(settings.store.url)
        try:
            app = create_app(store, settings)
            _Server(app, settings, lambda: ready and ready(url_of(listener))).run(sockets=[listener])
        finally:
            store.close()
    finally:
        listener.close()


@contextmanager
def running(app: FastAPI, *, host: str = "127.0.0.1", port: int = 0, settings: Settings | None = None) -> Iterator[str]:
    """The URL of `app`, served over real HTTP from a thread until the block ends. Port 0 lets the system choose."""
    listener = listen(host, port)
    started = threading.Event()
    server = _Server(app, settings or Settings(), started.set)
    thread = threading.Thread(target=server.run, args=([listener],), name="thumbwheel-server", daemon=True)
    thread.start()
    try:
        while not started.wait(0.05):
            if not thread.is_alive():
                raise ThumbwheelError("The server stopped while it started. Its log says why.")
        yield url_of(listener)
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises SettingError where the address is taken or not of this machine."""
    # The protocol is named because asyncio sets TCP_NODELAY only on such sockets; without it, the answer's second packet
    # waits 40 ms for the client's delayed acknowledgement of the first.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise SettingError.of(
            f"The server cannot listen on {host}, port {port}: {error.strerror or error}.",
            field="server.port",
            allowed="an address of this machine and a free port; 0 lets the system choose",
            got=f"{host}:{port}",
            next="Stop the program that uses the port, or set 'server.port' to another.",
        ) from error
    return listener


def url_of(listener: socket.socket) -> str:
    """The address to give to a client on this machine; a socket open to all is reached over loopback."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Server(uvicorn.Server):
    """uvicorn, which tells when it accepts connections, and returns after a signal instead of dying by it."""

    def __init__(self, app: FastAPI, settings: Settings, on_start: Callable[[], object]) -> None:
        server = settings.server
        super().__init__(
            uvicorn.Config(
                app,
                lifespan="off",
                log_level="warning",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=server.shutdown_timeout_s,
                timeout_keep_alive=60,
            )
        )
        self._on_start = on_start

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_start()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn raises a caught SIGTERM again at the end, which would kill the process before the store is closed."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
