"""What the stores can do, in the words in which hosts of the Agent Host protocol declare it (Host runtime §9).

The shared vectors hold declarations of two other stores and some that contradict themselves. Ours declare nothing over
any wire; what they can do is found out here by trying it, and must never be one of the contradictions.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from eventstore.store import Append, Conflict, Event, Heads, Part, Recorded
from tests.eventstore.conftest import House

pytestmark = pytest.mark.anyio

CASE = next(
    case
    for case in json.loads((Path(__file__).parents[1] / "vectors" / "host-dispatcher.json").read_text("utf-8"))[
        "projection"
    ]
    if case["id"] == "src-store-capabilities"
)
ONE, OTHER = (f"00000004-0000-8000-8000-00000000000{number}" for number in (1, 2))


def refused(declared: Any) -> str:
    """Why a declaration contradicts itself; empty where it does not, or declares nothing."""
    rules = (
        (declared.get("schemaMigrations") and declared.get("schemaVersion") is None, "migrations"),
        (declared.get("multiProcessSafe") and _scope(declared) == "process_local", "processes"),
        (_scope(declared) == "distributed" and not declared.get("optimisticConcurrency"), "distributed"),
        (declared.get("transactional") and not declared.get("atomicMutations"), "transactions"),
        (not (declared.get("atomicMutations") and declared.get("orderedReplay")), "a run store"),
    )
    return next((why for holds, why in rules if holds and declared["declared"]), "")


def _scope(declared: Any) -> str:
    return str(declared.get("coordinationScope", "process_local"))


@pytest.mark.parametrize("declared", CASE["refused"], ids=lambda declared: declared["why"])
def test_a_declaration_that_contradicts_itself_is_refused_for_its_reason(declared: Any) -> None:
    words = {"migrations", "processes", "distributed", "transactions", "a run store"}
    why = declared["why"].replace("multi-process", "processes")
    assert refused(declared) in {word for word in words if word in why}


def test_a_store_that_declares_nothing_is_never_refused() -> None:
    assert not refused(CASE["undeclared"])
    assert not refused(CASE["inMemory"])
    assert not refused(CASE["sqlite"])


async def test_each_store_does_what_a_run_store_must_and_what_nodes_that_share_it_need(house: House) -> None:
    found = await _tried(house)
    assert not refused(found)
    assert all(found[name] for name in ("optimisticConcurrency", "atomicMutations", "transactional", "orderedReplay"))
    assert found["coordinationScope"] == "distributed"


async def _tried(house: House) -> dict[str, Any]:
    """What the store shows of itself, tried through two nodes of one deployment."""
    here, there = await house.node("one"), await house.node("two")
    first = await here.append(Append(command="a", parts=(_part(ONE, 0, b"1", b"2"),)))
    late = await there.append(Append(command="b", parts=(_part(ONE, 0, b"lost"),)))
    torn = await there.append(Append(command="c", parts=(_part(OTHER, 0, b"lost"), _part(ONE, 1, b"lost"))))
    after = [(await node.look(OTHER)).heads for node in (here, there)]
    last = await there.append(Append(command="d", parts=(_part(OTHER, 0, b"1"), _part(ONE, 2, b"3"))))
    logs = [[(entry.version, entry.data) for entry in (await node.look(ONE)).entries] for node in (here, there)]
    whole = isinstance(torn, Conflict) and after == [Heads(), Heads()]
    shared = isinstance(first, Recorded) and isinstance(last, Recorded)
    return {
        "declared": True,
        "optimisticConcurrency": isinstance(late, Conflict) and late.heads[0].log == 2,
        "atomicMutations": whole,
        "transactional": whole and isinstance(last, Recorded),
        "orderedReplay": logs == [[(1, b"1"), (2, b"2"), (3, b"3")]] * 2,
        "coordinationScope": "distributed" if shared else "process_local",
    }


def _part(actor: str, version: int, *events: bytes) -> Part:
    return Part(actor=actor, log=version, events=tuple(Event(data) for data in events))
