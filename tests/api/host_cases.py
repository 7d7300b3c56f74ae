"""The host cases of the protocol's vectors, against any host that listens: how it was built does not matter here."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from api.parts import EXTENSIONS
from tests.http_client import Answer, Tcp, fetch
from tests.strict_client import host_answer, host_rules

VECTORS = json.loads((Path(__file__).parent.parent / "vectors" / "negotiation.json").read_text(encoding="utf-8"))
CASES: list[dict[str, Any]] = VECTORS["hostCases"]
PLAIN: dict[str, Any] = VECTORS["host"]["run"]
ORIGIN = "https://desk.example"


async def run_host_cases(target: Tcp, model_calls: Callable[[], int], tokens: Mapping[str, str]) -> list[str]:
    """Send every case to *target* and return what was wrong, a line per fault; *tokens* by alias."""
    faults: list[str] = []
    for case in CASES:
        before = model_calls()
        answer = await sent(target, case["request"], tokens)
        try:
            judge(case, answer, model_calls() - before)
        except AssertionError as error:
            faults.append(f"{case['id']}: {error}")
    return faults


async def sent(target: Tcp, request: Mapping[str, Any], tokens: Mapping[str, str]) -> Answer:
    """Send one request as a case writes it."""
    headers = list(request.get("headers", {}).items())
    if request.get("token"):
        headers.append(("Authorization", f"Bearer {tokens[request['token']]}"))
    if request.get("contentType"):
        headers.append(("Content-Type", request["contentType"]))
    return await fetch(target, request["method"], request["path"], headers, body_of(request))


def body_of(request: Mapping[str, Any]) -> bytes | None:
    """The body that a case describes."""
    match request:
        case {"bodyHex": str(digits)}:
            return bytes.fromhex(digits)
        case {"bodyText": {"$repeat": [str(piece), int(times)]}}:
            return (piece * times).encode()
        case {"bodyText": str(text)}:
            return text.encode()
        case {"body": {"$run": dict(patch)}}:
            return json.dumps(PLAIN | patch).encode()
        case {"body": body}:
            return json.dumps(body).encode()
        case _:
            return None


def judge(case: Mapping[str, Any], answer: Answer, model_calls: int) -> None:
    """Nothing, if *answer* is what the case expects."""
    expect = case["expect"]
    assert answer.status == expect["status"], f"{answer.status}: {answer.body[:200]!r}"
    assert answer.values("AgenticDriver-Version") == ["1.0"], answer.headers
    for name, value in expect.get("headers", {}).items():
        assert answer.values(name) == [value], f"{name}: {answer.values(name)}"
    for name in expect.get("absentHeaders", ()):
        assert answer.values(name) == [], name
    if "events" in expect:
        run = PLAIN | case["request"]["body"].get("$run", {})
        assert [event["type"] for event in host_rules(answer.body, run)] == expect["events"]
    elif answer.status != 204:
        _judge_json(expect, host_answer(answer.status, answer.headers, answer.body))
    assert model_calls == expect.get("modelCalls", 0), f"{model_calls} model calls"


def _without_ours(body: Any) -> Any:
    """*body* without the features that no protocol names: a host says everything it can do."""
    if not isinstance(body, dict) or "features" not in body:
        return body
    return body | {"features": [name for name in body["features"] if name not in EXTENSIONS]}


def _judge_json(expect: Mapping[str, Any], body: Any) -> None:
    if "json" in expect:
        assert _without_ours(body) == expect["json"], body
    if "subset" in expect:
        assert _holds(body, expect["subset"]), body
    if "error" in expect:
        assert _holds(body["error"], expect["error"]), body


def _holds(value: Any, subset: Any) -> bool:
    match subset:
        case dict():
            return isinstance(value, dict) and all(
                name in value and _holds(value[name], subset[name]) for name in subset
            )
        case list():
            return len(value) == len(subset) and all(map(_holds, value, subset))
        case _:
            return bool(value == subset)
