"""What the protocol's scenarios say of public clients, asked of the strict client that judges our own streams."""

import copy
import json
from collections.abc import Mapping
from typing import Any

from tests.scenario_words import Names
from tests.strict_client import ClientError, StreamCheck, checked_response

Case = Mapping[str, Any]
_REQUEST = {"provider": "mock", "model": "demo", "input": "x"}
_JSON = [("Content-Type", "application/json")]
_OPS = {"receipt": "approval-decision", "result": "tool-result", "progress": "tool-progress"}


def verdict(checks: Case, case: Case) -> str:
    """What the client makes of the case: `accepted`, or the code that it raises."""
    try:
        _read(checks["bases"][case["base"]], case)
    except ClientError as error:
        return error.code
    return "accepted"


def _read(base: Any, case: Case) -> None:
    if case["base"] == "stream":
        check = StreamCheck(_request(case))
        check.feed(b"".join(f"data: {json.dumps(event)}\n\n".encode() for event in _patched(base, case)))
        check.close()
        return
    sent = base["decision"] if "decision" in base else base["submission"]
    body = json.dumps(_patched(base["response"], case)).encode()
    checked_response(_OPS[case["base"]], sent, 200, _JSON, body)


def _request(case: Case) -> dict[str, Any]:
    offered = [
        {"name": name, "description": "x", "inputSchema": {"type": "object"}}
        for name in case.get("requestApplicationTools") or ()
    ]
    found = {"approvals": case.get("requestApprovals"), "tools": case.get("requestTools"), "applicationTools": offered}
    return _REQUEST | {name: value for name, value in found.items() if value}


def _patched(base: Any, case: Case) -> Any:
    document = copy.deepcopy(base)
    for patch in Names({}).resolved(case["patch"]):
        if "insertEventAfter" in patch:
            document.insert(patch["insertEventAfter"] + 1, patch["event"])
            document = [
                event | {name: document[0][name] for name in ("runId", "timestamp")} | {"sequence": number}
                for number, event in enumerate(document, 1)
            ]
            continue
        *way, last = patch["at"].split("/")[1:]
        place = document
        for name in way:
            place = place[int(name)] if isinstance(place, list) else place[name]
        place[last] = patch["set"]
    return document
