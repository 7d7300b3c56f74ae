"""What scenarios say of jobs: when one is far enough, and how the pages of its events follow each other."""

import json
from collections.abc import Sequence
from typing import Any

from tests.api.asgi_client import Told
from tests.scenario_words import Config, fits

_ENDED = frozenset({"completed", "failed", "cancelled", "interrupted"})


def came_to(body: Any, until: Config) -> bool:
    """Whether an answer is the one that is polled for."""
    wanted = {name: value for name, value in until.items() if name not in {"cursorAtLeast", "hasEventType"}}
    types = [event["type"] for event in body.get("events", ())]
    return (
        fits(body, wanted)
        and body.get("cursor", 0) >= until.get("cursorAtLeast", 0)
        and ("hasEventType" not in until or until["hasEventType"] in types)
    )


def at_the_end(page: Told) -> bool:
    """Whether no page of an ended job follows *page*."""
    body = json.loads(page.body)
    return body["job"]["state"] in _ENDED and body["nextCursor"] == body["job"]["cursor"]


def judge_pages(pages: Sequence[Told], step: Config) -> None:
    """Nothing, if *pages*, which a strict client took one by one, are together what *step* says."""
    bodies = [json.loads(page.body) for page in pages]
    events = [event for body in bodies for event in body["events"]]
    cursor = bodies[-1]["job"]["cursor"]
    types = [event["type"] for event in events]
    assert types == step.get("eventTypes", types)
    assert [event["sequence"] for event in events] == list(range(1, cursor + 1))
    assert all(body["hasMore"] == (body["nextCursor"] < body["job"]["cursor"]) for body in bodies)
    counts = [len(body["events"]) for body in bodies]
    assert counts == step.get("eventsPerPage", counts)
    assert max(len(page.body) for page in pages) <= step.get("responseBytesAtMost", 2_000_000)
