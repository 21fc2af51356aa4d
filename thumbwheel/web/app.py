"""The app: a store behind HTTP. Starts without torch.

app = create_app(open_store("sqlite:///thumbwheel.db"), Settings())
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware

from thumbwheel import __version__
from thumbwheel.config import Settings
from thumbwheel.stores.base import Store
from thumbwheel.web import faults, intake, openapi, pages, reading


def now_utc() -> datetime:
    """The wall clock."""
    return datetime.now(UTC)


def create_app(store: Store, settings: Settings, *, clock: Callable[[], datetime] = now_utc) -> FastAPI:
    """The HTTP API over `store`. `clock` gives the UTC time of receipt. The store stays the caller's to close.

    Raises SettingError or RegistryError for a name in 'server.kinds' that is no feedback kind.
    """
    app = FastAPI(
        title="Thumbwheel",
        version=__version__,
        description=openapi.DESCRIPTION,
        # FastAPI's own pages load scripts from other sites; ours is `pages`.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.include_router(intake.routes(store, settings, clock))
    app.include_router(reading.routes(store, settings, clock))
    app.include_router(pages.routes(app))
    faults.install(app)
    openapi.describe(app)
    if settings.server.allow_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.server.allow_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["Content-Type"],
        )
    return app
