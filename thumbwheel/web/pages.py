"""The page at /docs: the OpenAPI document for people, without a script."""

from __future__ import annotations

import json
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from jinja2 import Environment
from markdown_it import MarkdownIt

_MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable("table")
_PAGE = Environment(autoescape=True).from_string("""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{{ title }}</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 56rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
code, pre { font: 14px/1.45 ui-monospace, monospace; background: #f4f4f2; border-radius: 4px }
code { padding: .1em .3em } pre { padding: .8em; overflow-x: auto }
h2 code { font-size: 1em } section { border-top: 1px solid #ddd; margin-top: 1.5rem }
table { border-collapse: collapse } td, th { padding: .2em .8em .2em 0; text-align: left; vertical-align: top }
</style></head><body>
<h1>{{ title }} {{ version }}</h1>{{ description | safe }}
<p>For programs: <a href="/openapi.json">openapi.json</a>. Is it alive: <a href="/health">health</a>.</p>
{% for call in calls %}<section id="{{ call.id }}">
<h2><code>{{ call.method }} {{ call.path }}</code> {{ call.summary }}</h2>{{ call.description | safe }}
{% if call.parameters %}<table>{% for p in call.parameters %}
<tr><td><code>{{ p.name }}</code></td><td>{{ p["in"] }}{{ "" if p.required else ", optional" }}</td></tr>
{% endfor %}</table>{% endif %}
{% if call.example %}<pre>{{ call.example }}</pre>{% endif %}
<table>{% for status, said in call.responses %}<tr><td>{{ status }}</td><td>{{ said }}</td></tr>{% endfor %}</table>
</section>{% endfor %}</body></html>""")


def render(document: dict[str, Any]) -> str:
    """An OpenAPI document as one HTML page."""
    calls = [
        _call(method, path, call) for path, methods in document["paths"].items() for method, call in methods.items()
    ]
    info = document["info"]
    return _PAGE.render(
        title=info["title"], version=info["version"], description=_MARKDOWN.render(info["description"]), calls=calls
    )


def _call(method: str, path: str, call: dict[str, Any]) -> dict[str, Any]:
    content = call.get("requestBody", {}).get("content", {}).get("application/json", {})
    first = next(iter(content.get("examples", {}).values()), None)
    example = None
    if first is not None:
        body = json.dumps(first["value"], indent=1)
        example = f"curl -X POST $SERVER{path} -H 'Content-Type: application/json' -d '{body}'"
    return {
        "id": call["operationId"],
        "method": method.upper(),
        "path": path,
        "summary": call.get("summary", ""),
        "description": _MARKDOWN.render(call.get("description", "")),
        "parameters": call.get("parameters", []),
        "example": example,
        "responses": [(status, said.get("description", "")) for status, said in call["responses"].items()],
    }


def routes(app: FastAPI) -> APIRouter:
    """GET / and GET /docs."""
    router = APIRouter(include_in_schema=False)

    @router.get("/")
    def root() -> Response:
        return RedirectResponse("/docs")

    @router.get("/docs")
    def docs() -> Response:
        return HTMLResponse(render(app.openapi()))

    return router
