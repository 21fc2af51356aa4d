"""An application that collects feedback, in one file: a server in a thread, an assistant, two people, and what comes out.

    python examples/app_with_feedback.py

Everything is real but the assistant and the people: HTTP, an SQLite file, and the way from clicks to preferences.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from thumbwheel.client import Client
from thumbwheel.collect.noise import NoiseFilter
from thumbwheel.config import Settings, from_tree
from thumbwheel.records import Preference
from thumbwheel.signals.views import preferences
from thumbwheel.stores.base import Store
from thumbwheel.stores.sql import open_store
from thumbwheel.web.app import create_app
from thumbwheel.web.serve import running

ANSWERS = {  # two attempts at each question
    "How do I undo my last commit?": ("Delete the folder and clone it again.", "Run `git reset --soft HEAD~1`."),
    "What is 17 × 3?": ("17 × 3 is 51.", "It is a bit more than fifty, I would say."),
    "Which day follows Friday?": ("Sunday.", "That depends on your calendar."),
}


def use(client: Client) -> None:
    """What the application does: tell what was said, and pass on what people do."""
    first, retry = attempts(client, "How do I undo my last commit?")
    client.thumb(first, up=False, who="ann")  # ann does not like it, asks again …
    client.thumb(retry, up=True, who="ann")  # … and likes that

    a, b = attempts(client, "What is 17 × 3?")  # bo sees both side by side
    slip = client.choice([b, a], b, who="bo")
    client.correct(slip, {"chosen": a.id}, who="bo")  # a misclick: the correction supersedes, nothing is overwritten

    wrong, _ = attempts(client, "Which day follows Friday?")
    client.edit(wrong, "Saturday.", who="bo")
    client.comment(wrong, "Really?", who="ann")  # words alone are kept, and make no pair


def attempts(client: Client, question: str) -> list:
    """Two answers to one question: the same task, attempts 0 and 1."""
    one, two = ANSWERS[question]
    step = client.step(question, one)
    return [step, client.step(question, two, task_id=step.task_id, attempt=1)]


def pairs_of(store: Store, settings: Settings) -> list[Preference]:
    """From the store to training rows: joined, freed of noise, paired; each stage says what became of its rows."""
    quiet = NoiseFilter(settings.feedback)
    found = preferences(quiet(store.episodes()), settings.feedback)
    print("noise:      ", quiet.line())
    print("preferences:", found.account.line())
    return found.rows


def main(folder: Path) -> list[Preference]:
    """Run the application once in `folder`."""
    settings = from_tree({"store": {"url": f"sqlite:///{folder / 'feedback.db'}"}})
    with open_store(settings.store.url) as store:
        with running(create_app(store, settings)) as url, Client(url, surface="example", policy_version="v0") as client:
            print("serving", url)
            use(client)
            print("stored:     ", client.counts())
        rows = pairs_of(store, settings)
    for row in rows:
        print(f"\n{row.prompt[-1].content}\n  chosen    {row.chosen.content}\n  rejected  {row.rejected.content}")
        print(f"  weight {row.weight:g}, from {len(row.feedback_ids)} feedback")
    return rows


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        main(Path(made))
