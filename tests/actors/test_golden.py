"""Logs of every shape ever written; what stands in `logs/` is never changed, and must replay for ever.

A log is `<name>.jsonl`, one event a line as it is stored; beside it what clients were shown of it,
as a feed (text as the turn tells it) and as the replay of a key.
In `logs/companions/` are logs of approvals and tickets, of which nothing is shown.
"""

from pathlib import Path
from typing import get_args

import msgspec
import pytest
from msgspec import Struct

from actors import kinds, run
from actors.codec import decode_approval, decode_run, decode_ticket, encode
from actors.events import ApprovalEvent, RunEvent, TicketEvent
from projections import wire_feed
from tests.actors.runs import RUN_ID, folded, framed, items_of_log
from tests.host_rules import host_rules

LOGS = Path(__file__).parent / "logs"
NAMES = sorted(path.stem for path in LOGS.glob("*.jsonl") if "." not in path.stem)
COMPANIONS = sorted(path.stem for path in (LOGS / "companions").glob("*.jsonl"))
EVENTS: tuple[type[Struct], ...] = get_args(RunEvent)
COMPANION_EVENTS: tuple[type[Struct], ...] = get_args(ApprovalEvent) + get_args(TicketEvent)


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


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.__name__)
def test_every_event_with_each_of_its_fields_is_in_some_old_log(event: type[Struct]) -> None:
    tag = str(event.__struct_config__.tag)
    written = [msgspec.json.decode(line) for name in NAMES for line in lines(name)]
    seen = {field for one in written if one["type"] == tag for field in one}
    assert set(event.__struct_encode_fields__) <= seen, f"add a log to {LOGS.name}/ that has the new shape of {tag}"


@pytest.mark.parametrize("name", COMPANIONS)
def test_the_log_of_an_old_approval_or_ticket_is_written_today_as_it_was(name: str) -> None:
    decode = decode_ticket if name.startswith("ticket") else decode_approval
    assert [encode(decode(line)) for line in lines(f"companions/{name}")] == lines(f"companions/{name}")


@pytest.mark.parametrize("event", COMPANION_EVENTS, ids=lambda event: event.__name__)
def test_every_event_of_approvals_and_tickets_is_in_some_old_log(event: type[Struct]) -> None:
    tag = str(event.__struct_config__.tag)
    written = [msgspec.json.decode(line) for name in COMPANIONS for line in lines(f"companions/{name}")]
    assert set(event.__struct_encode_fields__) <= {field for one in written if one["type"] == tag for field in one}
