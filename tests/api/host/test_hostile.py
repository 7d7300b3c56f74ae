"""Envelopes nobody should send: valid ones, mutated ones, hostile ones; no answer is outside the contract."""

import json
import random
from typing import Any

import pytest

from eventstore.memory import MemoryStore
from tests.actors.reviewing import call
from tests.actors.support import new_memory
from tests.api.host.hosting import Desk, hosting, policy, rounds
from tests.api.host.test_host_runs import reviewed
from tests.host_client import OPERATIONS, STATUSES, envelope, whole

pytestmark = pytest.mark.anyio

COUNT = 10_000
NAMES = ["run-1", "run-2", "a/b", "ü", "0b6c2a52-6d0e-4f7e-9a41-5f2f5f3b7c10", "x" * 600, "\u0000", "__proto__"]
ODD: list[Any] = [
    None, True, False, 0, -1, 1, 2, 3.0, 1e300, -0.0, 2**53, 2**64, 2**64 - 1, -(2**63), 10**400, "", "x", "\ud83d\ude00",
    "\u0000", "y" * 5_000, [], [[]], {}, {"a": 1}, {"a": None}, [None], {"token": "t"}, {"": ""}, "2026-07-01", "pending",
]  # fmt: skip
SECRETS = (b"Traceback", b"actors", b"eventstore", b".py", b"0x7f", b"permit", b"principal")


class Sender:
    """Makes envelopes up, the same ones for the same seed."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)  # noqa: S311 - the same envelopes each time

    def valid(self) -> dict[str, Any]:
        dice = self.dice
        operation = dice.choice(OPERATIONS)
        name, revision = dice.choice(NAMES[:4]), dice.randint(1, 8)
        named = {"runId": name, "expectedRevision": revision, "approvalId": dice.choice(["none", NAMES[4]])}
        bodies: dict[str, dict[str, Any]] = {
            "create_run": {
                "context": {
                    "runId": name,
                    "metadata": {"region": "ap"},
                    "deadlineUnixMs": dice.choice([None, 5, 10**13]),
                },
                "input": dice.choice([{"prompt": "x"}, {"prompt": "x", "tools": ["reviewed"]}, 7, None, [1, 2.5]]),
                "metadata": {"team": "a", "apiKey": "s"},
            },
            "get_run": {"runId": name},
            "cancel_run": named | {"reason": dice.choice(["", "so"])},
            "resolve_approval": named | {"resolution": dice.choice(["approved", "denied"]), "metadata": {"a": "b"}},
            "resume_run": named | {"input": dice.choice(ODD[:12])},
            "list_events": {"runId": name, "afterSequence": dice.randint(0, 9), "limit": dice.randint(1, 9)},
        }
        return envelope(operation, bodies[operation], request_id=f"r{dice.random()}", key=f"k{dice.randint(0, 60)}")

    def mutated(self, value: Any) -> Any:
        """*value* with something in it replaced, removed or added."""
        dice = self.dice
        if not isinstance(value, dict) or not value or dice.random() < 0.15:
            return dice.choice(ODD)
        name = dice.choice(list(value))
        match dice.randint(0, 4):
            case 0:
                return {key: one for key, one in value.items() if key != name}
            case 1:
                return value | {str(dice.choice(["extra", "__proto__", name.upper()])): dice.choice(ODD)}
            case _:
                return value | {name: self.mutated(value[name])}

    def text(self) -> bytes:
        dice = self.dice
        made: Any = self.valid()
        for _ in range(dice.choice([0, 0, 1, 1, 2, 4])):
            made = self.mutated(made)
        data = bytearray(json.dumps(made, ensure_ascii=dice.random() < 0.5).encode("utf-8", "surrogatepass"))
        if dice.random() < 0.25:
            for _ in range(dice.randint(1, 4)):
                at = dice.randrange(len(data) + 1)
                data[at : at + dice.randint(0, 2)] = bytes(dice.choices(b'{}[]",:\\u0\xff\xed\xa0 \n-1e9NaN', k=2))
        if dice.random() < 0.02:
            data = bytearray(b"[" * 100_000 if dice.random() < 0.5 else b'{"a":' * 5_000)
        return bytes(data)


def echoed(text: bytes) -> tuple[str, str] | None:
    """The id and operation that an answer must carry, as far as the text is a plain envelope."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or not isinstance(value.get("requestId"), str) or not value["requestId"]:
        return None
    known = value.get("operation") if value.get("operation") in OPERATIONS else "get_run"
    right = value.get("protocolVersion") == "2026-07-01" or not isinstance(value.get("protocolVersion"), str)
    return value["requestId"], str(known) if right else "get_run"


async def judged(desk: Desk, text: bytes) -> str:
    answer = await desk.raw(text, policy())
    told = whole(answer.body)
    expected = echoed(text)
    if expected is not None and told["requestId"]:
        assert (told["requestId"], told["operation"]) == expected, text[:300]
    assert desk.faults == [], (text[:300], desk.faults)
    assert not any(word in answer.body for word in SECRETS), answer.body[:300]
    if told["ok"] and "status" in told["body"]:
        assert told["body"]["status"] in STATUSES
    return str(told["error"]["code"]) if told["error"] else ""


async def test_no_envelope_whatever_it_is_gets_an_answer_outside_the_contract() -> None:
    sender, codes = Sender(7), set[str]()
    async with hosting(rounds([call("reviewed")]), MemoryStore(new_memory(), "n1"), reviewed()) as desk:
        for _ in range(COUNT):
            codes.add(await judged(desk, sender.text()))
    assert codes >= {"", "invalid_request", "unsupported_protocol_version", "not_found", "conflict"}
    assert "internal" not in codes
