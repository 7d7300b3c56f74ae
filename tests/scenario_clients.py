"""What the scenarios of sessions and jobs say of public clients, asked of the strict client that judges our own answers."""

import copy
import json
from typing import Any

from tests.scenario_words import Config
from tests.strict_client import ClientError, Object, StreamCheck, checked_response

_JSON = [("Content-Type", "application/json")]
_REQUEST: Object = {"provider": "mock", "model": "demo", "input": "x"}


def verdict(kind: str, checks: Config, case: Config) -> str:
    """What the client makes of the case of *kind* (`session` or `job`): `accepted`, or the code that it raises."""
    base = checks["bases"][case["base"]]
    try:
        if case["base"] == "stream":
            _streamed(base, case)
        else:
            request = case.get("request", base["request"])
            body = json.dumps(_patched(base["response"], case)).encode()
            checked_response(f"{kind}-{case['base']}", request, 200, _JSON, body)
    except ClientError as error:
        return error.code
    return "accepted"


def _streamed(base: Any, case: Config) -> None:
    asked = case.get("requestSession", base["requestSession"])
    check = StreamCheck(_REQUEST if asked is None else _REQUEST | {"session": asked})
    check.feed(b"".join(f"data: {json.dumps(event)}\n\n".encode() for event in _patched(base["events"], case)))
    check.close()


def _patched(base: Any, case: Config) -> Any:
    document = copy.deepcopy(base)
    for patch in case["patch"]:
        *way, last = patch["at"].split("/")[1:]
        place = document
        for name in way:
            place = place[int(name)] if isinstance(place, list) else place[name]
        if "remove" in patch:
            del place[last]
        else:
            place[int(last) if isinstance(place, list) else last] = patch["set"]
    return document
