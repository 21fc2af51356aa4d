"""Commands that stay open: the HTTP server and a talk with a policy."""

from __future__ import annotations

from typing import Annotated

import typer

from thumbwheel.cli.app import File, Overrides, app, hint, out, settings_from


@app.command()
def serve(
    settings_file: File = None,
    overrides: Overrides = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 lets the system choose.")] = None,
) -> None:
    """Take steps and feedback in over HTTP. Everything answered with 2xx is on disk."""
    from thumbwheel.web.serve import serve as run

    more = [f"server.host='{host}'"] if host else []
    more += [f"server.port={port}"] if port is not None else []
    settings = settings_from(settings_file, [*(overrides or []), *more])

    def ready(url: str) -> None:
        out.print(f"Serving [bold]{url}[/]  (API description: {url}/docs)  store: {settings.store.url}")
        hint(f"send feedback with thumbwheel.client.Client('{url}')", "stop with Ctrl-C; nothing acknowledged is lost")

    run(settings, ready=ready)


@app.command()
def chat(
    settings_file: File = None,
    overrides: Overrides = None,
    version: Annotated[str | None, typer.Option(help="Policy version; the live one by default.")] = None,
    who: Annotated[str, typer.Option(help="Pseudonym under which your feedback is kept.")] = "me",
) -> None:
    """Talk with a policy in the terminal; +, - and = TEXT after a reply become feedback in the store."""
    from thumbwheel.cli.talk import talk

    talk(settings_from(settings_file, overrides), version=version, who=who)
