"""The how-to does what it says."""

import json
import re
from pathlib import Path

from thumbwheel.client import Client

PAGE = (Path(__file__).resolve().parents[2] / "docs/howto/send-feedback.md").read_text(encoding="utf-8")


def test_the_python_of_the_page_runs(url, store):
    [code] = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    names: dict = {}
    exec(code.replace("http://127.0.0.1:8321", url), names)
    names["client"].close()
    [episode] = store.episodes()
    assert [feedback.kind for feedback in episode.feedback] == ["thumb"]


def test_the_calls_of_the_table_exist(url):
    with Client(url) as client:
        for name in re.findall(r"`(?:with )?client\.(\w+)\(", PAGE):
            assert callable(getattr(client, name)), name


def test_the_bodies_of_the_page_are_accepted(http, store):
    calls = re.findall(r"curl -X POST http://127\.0\.0\.1:8321(\S+) .*?-d '(.*?)'", PAGE, re.S)
    assert [path for path, _ in calls] == ["/v1/steps", "/v1/feedback"]
    assert [http.post(path, json=json.loads(body)).json()["status"] for path, body in calls] == ["stored", "stored"]
    assert store.counts()["waiting"] == 0
