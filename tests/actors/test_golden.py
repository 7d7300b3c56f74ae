"""Logs of every shape ever written; what stands in `logs/` is never changed, and must replay for ever.

A log is `<name>.jsonl`, one event a line as it is stored; beside it what clients were shown of it,
as a feed (text as the turn tells it) and as the replay of a key.
For runs of the Host, `<name>.host.jsonl` is what the Host was shown.
In `logs/companions/` are logs of approvals, tickets, sessions and Host keys, of which nothing is shown;
`session-<name>.jsonl` is of the session of whose turns `<name>.jsonl` is one.
In `logs/keys/` is what answers for a key without being a run: reservations, and what is left of erased runs.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from msgspec import Struct

from actors import host_key, kinds, run, session
from actors.budgets import Budget
from actors.codec import decode_approval, decode_host_key, decode_run, decode_session, decode_ticket, encode
from actors.events import (
    ApprovalEvent,
    HostContext,
    HostKeyEvent,
    HostRun,
    KeyBurned,
    KeyReserved,
    RunErased,
    RunEvent,
    SessionEvent,
    SessionTurn,
    Stored,
    TicketEvent,
    ToolFact,
    Visible,
)
from api.host import encoding
from projections import host_feed, wire_feed
from tests.actors.runs import RUN_ID, SESSION, beside, folded, framed, items_of_log
from tests.host_rules import host_rules

LOGS = Path(__file__).parent / "logs"
NAMES = sorted(path.stem for path in LOGS.glob("*.jsonl") if "." not in path.stem)
COMPANIONS = sorted(path.stem for path in (LOGS / "companions").glob("*.jsonl"))
SESSIONS = [name for name in COMPANIONS if name.startswith("session-")]
KEYS = sorted(path.stem for path in (LOGS / "keys").glob("*.jsonl"))
OF_KEYS = (KeyReserved, KeyBurned, RunErased)
EVENTS: tuple[type[Struct], ...] = tuple(event for event in get_args(RunEvent) if event not in OF_KEYS)
OF_COMPANIONS = (ApprovalEvent, TicketEvent, SessionEvent, HostKeyEvent)
COMPANION_EVENTS: tuple[type[Struct], ...] = tuple(event for kind in OF_COMPANIONS for event in get_args(kind))
HOST_RUNS = [name for name in NAMES if (LOGS / f"{name}.host.jsonl").exists()]
PARTS: Mapping[type[Struct], str] = {
    SessionTurn: "session",
    Budget: "budgets",
    ToolFact: "tools",
    Visible: "said",
    Stored: "stored",
    HostRun: "host",
    HostContext: "context",
}
"""What events hold, by the members that hold it."""
DECODERS: Mapping[str, Callable[[bytes], Any]] = {
    "approval": decode_approval,
    "ticket": decode_ticket,
    "session": decode_session,
    "hostkey": decode_host_key,
}


def lines(name: str) -> list[bytes]:
    return (LOGS / f"{name}.jsonl").read_bytes().splitlines()


def numbered(items: list[bytes]) -> list[bytes]:
    return [wire_feed.numbered(number, item) for number, item in enumerate(items, 1)]


@pytest.mark.parametrize("name", NAMES)
def test_an_old_log_is_shown_as_ever_to_the_byte(name: str) -> None:
    log = [decode_run(line) for line in lines(name)]
    assert numbered(items_of_log(log)) == lines(f"{name}.feed")
    assert numbered(wire_feed.replayed(RUN_ID, log)) == lines(f"{name}.replay")


@pytest.mark.parametrize("name", NAMES)
def test_an_old_log_is_one_that_a_host_may_show(name: str) -> None:
    log = [decode_run(line) for line in lines(name)]
    state = folded(log)
    assert isinstance(state, run.Ended)
    request = msgspec.json.decode(state.accepted.request)
    for items in (items_of_log(log), wire_feed.replayed(RUN_ID, log)):
        host_rules(framed(items), request)


@pytest.mark.parametrize("name", NAMES)
def test_an_old_log_can_be_worked_on_from_any_of_its_versions(name: str) -> None:
    state: run.State = run.New()
    for line in lines(name):
        assert run.next_effect(state) is not None or isinstance(state, run.New)
        state = run.evolve(state, decode_run(line))
        assert kinds.RUN.thaw(kinds.RUN.freeze(state)) == state
    assert run.next_effect(state) is None


@pytest.mark.parametrize("name", NAMES)
def test_what_is_written_today_is_what_was_written(name: str) -> None:
    assert [encode(decode_run(line)) for line in lines(name)] == lines(name)


def written(event: type[Struct], folder: str = "") -> set[str]:
    """The fields of *event* that stand in old logs."""
    tag, names = str(event.__struct_config__.tag), {"": NAMES, "companions/": COMPANIONS, "keys/": KEYS}[folder]
    events = [msgspec.json.decode(line) for name in names for line in lines(f"{folder}{name}")]
    return {field for one in events if one["type"] == tag for field in one}


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.__name__)
def test_every_event_with_each_of_its_fields_is_in_some_old_log(event: type[Struct]) -> None:
    missing = set(event.__struct_encode_fields__) - written(event)
    assert not missing, f"add a log to {LOGS.name}/ that has the new shape of {event.__struct_config__.tag}"


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
def test_every_part_of_an_event_with_each_of_its_fields_is_in_some_old_log(part: type[Struct]) -> None:
    names = [*NAMES, *(f"companions/{name}" for name in COMPANIONS)]
    events = [msgspec.json.decode(line) for name in names for line in lines(name)]
    held = [(event | event.get("host", {})).get(PARTS[part], []) for event in events]
    fields = {field for one in held for each in (one if isinstance(one, list) else [one]) for field in each}
    assert set(part.__struct_encode_fields__) <= fields


@pytest.mark.parametrize("name", COMPANIONS)
def test_the_log_of_an_old_approval_ticket_or_session_is_written_today_as_it_was(name: str) -> None:
    decode = DECODERS[name.partition("-")[0]]
    assert [encode(decode(line)) for line in lines(f"companions/{name}")] == lines(f"companions/{name}")


@pytest.mark.parametrize("event", COMPANION_EVENTS, ids=lambda event: event.__name__)
def test_every_event_of_approvals_tickets_and_sessions_is_in_some_old_log(event: type[Struct]) -> None:
    assert set(event.__struct_encode_fields__) <= written(event, "companions/")


@pytest.mark.parametrize("name", HOST_RUNS)
def test_an_old_log_of_a_host_run_is_shown_to_the_host_as_ever_to_the_byte(name: str) -> None:
    _, shown = host_feed.whole("run-1", [decode_run(line) for line in lines(name)])
    assert [encoding.compact(encoding.event(event)) for event in shown] == lines(f"{name}.host")


@pytest.mark.parametrize("name", NAMES)
def test_any_old_log_has_host_events_numbered_as_its_revisions_are(name: str) -> None:
    log = [decode_run(line) for line in lines(name)]
    state, shown = folded(log), host_feed.whole("run-1", log)[1]
    assert isinstance(state, run.Ended)
    assert [event.sequence for event in shown] == list(range(1, state.revision + 1))
    assert shown[-1].status == state.status


def test_an_old_log_of_a_host_key_says_what_the_run_said_last() -> None:
    states: list[host_key.State] = [host_key.New()]
    for line in lines("companions/hostkey-overtaken"):
        states.append(host_key.evolve(states[-1], decode_host_key(line)))
        assert kinds.HOST_KEY.thaw(kinds.HOST_KEY.freeze(states[-1])) == states[-1]
    assert [type(state).__name__ for state in states] == ["New", "Reserved", "Settled", "Settled", "Gone"]
    assert isinstance(settled := states[3], host_key.Settled)
    assert (bytes(settled.outcome), settled.applied) == (b'{"revision":3,"status":"cancelled"}', True)


@pytest.mark.parametrize("name", SESSIONS)
def test_an_old_session_can_be_worked_on_from_any_of_its_versions(name: str) -> None:
    state: session.State = session.New()
    for line in lines(f"companions/{name}"):
        assert not isinstance(state, session.Gone)
        state = session.evolve(state, decode_session(line))
        assert not isinstance(state, session.New)
        assert kinds.SESSION.thaw(kinds.SESSION.freeze(state)) == state


@pytest.mark.parametrize("name", [name for name in NAMES if f"session-{name}" in SESSIONS])
def test_an_old_turn_finds_and_writes_in_its_session_what_it_did(name: str) -> None:
    log, of_session = [decode_run(line) for line in lines(name)], lines(f"companions/session-{name}")
    for one in beside(RUN_ID, run.New(), log):
        assert (one.actor, one.event) == (SESSION, of_session[one.log])
    turn = getattr(log[0], "session", None)
    state: session.State = session.New()
    for line in of_session[: turn.version - 1 if turn else 0]:
        state = session.evolve(state, decode_session(line))
    assert isinstance(turn, SessionTurn)
    assert isinstance(state, session.Open)
    assert session.Size(turn.visible, turn.messages, turn.record_bytes) == state.size
    assert turn.revision == state.revision


@pytest.mark.parametrize("name", KEYS)
def test_what_answers_for_an_old_key_is_written_today_as_it_was_and_answers_still(name: str) -> None:
    log = [decode_run(line) for line in lines(f"keys/{name}")]
    assert [encode(event) for event in log] == lines(f"keys/{name}")
    state = folded(log)
    assert isinstance(state, run.Reserved | run.Buried)
    assert kinds.RUN.thaw(kinds.RUN.freeze(state)) == state
    assert (run.next_effect(state), items_of_log(log)) == (None, [])
    again = run.decide(state, run.ReserveKey("ann", "a" * 64, RUN_ID), 0)
    other = run.decide(state, run.ReserveKey("ann", "b" * 64, RUN_ID), 0)
    assert not again.events
    assert again.answer != other.answer


@pytest.mark.parametrize("event", OF_KEYS, ids=lambda event: event.__name__)
def test_every_event_of_keys_is_in_some_old_log(event: type[Struct]) -> None:
    assert set(event.__struct_encode_fields__) <= written(event, "keys/")
