"""The checker of histories finds nothing in a sound one, and each way in which one may be broken."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.history import Acknowledged, Effect, History, Kept, Outcome, Owned, Read, Written, faults

RUN, JOB, APPROVAL, TICKET, SESSION = "run", "job", "approval", "ticket", "session"


def entry(version: int, command: str, kind: str, **members: Any) -> Written:
    return Written(version, command, {"type": kind} | members)


def item(kind: str, number: int) -> bytes:
    return json.dumps({"type": kind, "sequence": number}, separators=(",", ":")).encode()


def kept(actor: str, *log: Written, feed: tuple[str, ...] = (), ended: bool = True) -> Kept:
    return Kept(actor, log, feed_of(*feed), len(log), len(feed), ended)


def feed_of(*kinds: str) -> dict[int, bytes]:
    return {number: item(kind, number) for number, kind in enumerate(kinds, 1)}


DELTA = b'{"type":"text.delta","text":"hi"}'
SHOWN = ("run.started", "tool.called", "approval.requested", "approval.resolved", "tool.completed", "run.completed")
SOUND = History(
    kept=(
        kept(
            RUN,
            entry(1, "a", "run.accepted", request={"input": "one"}, session={"id": SESSION}),
            entry(2, "x1.1", "tool.called", call={"id": "c1"}),
            entry(3, "x1.2", "review.asked", approval_id=APPROVAL),
            entry(4, "b", "review.settled", approval_id=APPROVAL, outcome="approved", by="ann"),
            entry(5, "t", "run.claimed", node="n2"),
            entry(6, "x2.1", "tool.started"),
            entry(7, "x2.2", "tool.completed", call_id="c1"),
            entry(8, "x2.3", "run.completed", text="done"),
            feed=SHOWN,
        ),
        kept(
            APPROVAL,
            entry(1, "x1.2", "approval.requested"),
            entry(2, "b", "approval.decided", outcome="approved", by="ann"),
        ),
        kept(
            SESSION,
            entry(1, "s", "session.created"),
            entry(2, "a", "turn.reserved", run_id=RUN),
            entry(3, "x2.3", "turn.committed", run_id=RUN),
            ended=False,
        ),
        kept(
            JOB,
            entry(1, "j", "run.accepted", request={"input": "two"}, origin="job"),
            entry(2, "k", "run.started"),
            entry(3, "x1.1", "tool.called", call={"id": "c2"}),
            entry(4, "x1.2", "ticket.offered", execution_id=TICKET),
            entry(5, "l", "tool.completed", call_id="c2"),
            entry(6, "x2.1", "run.completed", text="well"),
            feed=("run.started", "run.completed"),
        ),
        kept(TICKET, entry(1, "x1.2", "ticket.opened"), entry(2, "l", "ticket.closed")),
    ),
    reads=(
        Read("ann on n1", RUN, 0, [(n, item(SHOWN[n - 1], n)) for n in (1, 2, 3)], over=False),
        Read("ann on n2", RUN, 3, [(n, item(SHOWN[n - 1], n)) for n in (4, 5, 6)], over=True),
    ),
    acknowledged=(
        Acknowledged("started", RUN),
        Acknowledged("completed", RUN, "done"),
        Acknowledged("decision", RUN, (APPROVAL, "approved", "ann")),
        Acknowledged("job", JOB),
        Acknowledged("cancelled", JOB),
        Acknowledged("delivery", JOB, "c2"),
        Acknowledged("session", SESSION),
        Acknowledged("turn", SESSION, RUN),
    ),
    effects=(Effect(RUN, "c1", "pay"), Effect(JOB, "c2", "app", application=True)),
    owned=(Owned(RUN, 1, "n1"), Owned(RUN, 1, "n1"), Owned(RUN, 2, "n2"), Owned(JOB, 1, "n1")),
    outcomes=(
        Outcome("k", RUN, {"type": "run.completed", "result": {"text": "done"}}, replayed=False),
        Outcome("k", RUN, {"type": "run.completed", "result": {"text": "done"}}, replayed=True),
    ),
    held={"runs": (), "sessions": (SESSION,), "jobs": (JOB,), "job-bytes": (JOB,), "keys": ("k",)},
    due=((RUN, "retention"),),
    listed=(("runs:ann", RUN),),
)


def actor(name: str) -> Kept:
    return next(one for one in SOUND.kept if one.actor == name)


def with_actor(name: str, **changes: Any) -> History:
    """The sound history in which one actor is kept otherwise."""
    return SOUND._replace(kept=[one._replace(**changes) if one.actor == name else one for one in SOUND.kept])


def with_log(name: str, change: Callable[[list[Written]], Any]) -> History:
    """The sound history in which one log is another, and still goes as far as its head."""
    log = list(actor(name).log)
    change(log)
    log = [one._replace(version=number) for number, one in enumerate(log, 1)]
    return with_actor(name, log=log, log_head=len(log))


def with_event(name: str, version: int, **members: Any) -> History:
    """The sound history in which one event says something else."""

    def change(log: list[Written]) -> None:
        log[version - 1] = log[version - 1]._replace(event={**log[version - 1].event, **members})

    return with_log(name, change)


def also(**more: Any) -> History:
    """The sound history, and more of something."""
    return SOUND._replace(**dict[str, Any]({name: (*getattr(SOUND, name), one) for name, one in more.items()}))


def held(**pools: tuple[str, ...]) -> History:
    return SOUND._replace(held={**SOUND.held, **{name.replace("_", "-"): of for name, of in pools.items()}})


def test_a_sound_history_has_no_fault() -> None:
    assert faults(SOUND) == []


LOST = kept(
    "lost",
    entry(1, "a", "run.accepted", request={"input": "three"}),
    entry(2, "f", "run.failed", cause="history"),
    feed=("run.started", "step.started", "run.failed"),
)


def lost(*reads: Read) -> History:
    """The sound history, and a run that ended because its history was lost, as some saw it."""
    return SOUND._replace(kept=(*SOUND.kept, LOST), reads=(*SOUND.reads, *reads))


def lost_read(reader: str, *kinds: str) -> Read:
    return Read(reader, "lost", 0, [(number, item(kind, number)) for number, kind in enumerate(kinds, 1)], over=False)


def test_of_a_lost_history_readers_may_have_seen_more_than_is_stored() -> None:
    seen = [lost_read(reader, "run.started", "text.delta", "text.delta", "text.delta") for reader in ("bo", "cy")]
    assert faults(lost(*seen, lost_read("di", "run.started", "step.started", "run.failed"))) == []


def replaceable(read: Read) -> History:
    """The sound history over servers that may be replaced, as somebody saw it besides."""
    return also(reads=read)._replace(may_lose=True)


def run_read(*data: bytes, over: bool = False) -> Read:
    return Read("bo", RUN, 0, list(enumerate(data, 1)), over=over)


def test_where_servers_are_replaced_a_reader_without_an_end_may_have_seen_what_was_lost_and_nothing_after_it() -> None:
    assert faults(replaceable(run_read(item(SHOWN[0], 1), DELTA))) == []
    after = run_read(item(SHOWN[0], 1), DELTA, item(SHOWN[2], 3))
    assert faults(replaceable(after)) == ["bo saw number 3 of run after what was lost of it"]
    ended = run_read(*(item(kind, number) for number, kind in enumerate(SHOWN[:-1], 1)), DELTA, over=True)
    assert any("something else under 6" in fault for fault in faults(replaceable(ended)))


BROKEN: Mapping[str, tuple[History, str]] = {
    "an event that is missing": (
        with_actor(RUN, log=[*actor(RUN).log[:3], *actor(RUN).log[4:]]),
        "log of run has a gap",
    ),
    "an item that is missing": (with_actor(RUN, feed={1: item("run.started", 1)}), "feed of run has a gap"),
    "an item beyond the head": (with_actor(RUN, feed_head=5), "goes beyond its head 5"),
    "a reader that saw a gap": (
        also(reads=Read("bo", RUN, 0, [(1, item(SHOWN[0], 1)), (3, item(SHOWN[2], 3))], over=False)),
        "bo read [1, 3]",
    ),
    "a reader that saw a number twice": (
        also(reads=Read("bo", RUN, 0, [(1, item(SHOWN[0], 1))] * 2, over=False)),
        "bo read [1, 1]",
    ),
    "a reader that saw other bytes": (
        also(reads=Read("bo", RUN, 1, [(2, b'{"type":"text.delta"}')], over=False)),
        "something else under 2",
    ),
    "a reader that saw what is not stored": (
        also(reads=Read("bo", RUN, 6, [(7, item("text.delta", 7))], over=False)),
        "which is not stored",
    ),
    "a reader that saw two histories": (
        lost(lost_read("bo", "run.started", "text.delta", "run.failed")),
        "bo saw number 3 of lost after what was lost of it",
    ),
    "readers that saw different things before they were lost": (
        lost(lost_read("bo", "run.started", "text.delta"), lost_read("cy", "run.started", "tool.called")),
        "cy saw something else under 2 of lost, before it was lost",
    ),
    "a reader that was told of no end": (
        also(reads=Read("bo", RUN, 0, [(1, item(SHOWN[0], 1))], over=True)),
        "saw no end",
    ),
    "something after the end": (
        with_log(RUN, lambda log: log.append(entry(9, "late", "tool.completed", call_id="c1"))),
        "the log of run ends at [8]",
    ),
    "two ends": (
        with_actor(RUN, feed=feed_of(*SHOWN, "run.failed"), feed_head=7),
        "the feed of run ends at [6, 7]",
    ),
    "an end in the log alone": (with_actor(RUN, feed=feed_of(*SHOWN[:5]), feed_head=5), "the feed of run ends at []"),
    "a text that is streamed twice": (
        with_actor(
            RUN,
            log=[*actor(RUN).log[:4], entry(5, "x1.3", "turn.completed", step=1, text="hi", streamed=True)],
            feed=dict(enumerate((item("step.started", 1), DELTA, DELTA), 1)),
        ),
        "says 'hi', and showed ['hihi']",
    ),
    "a run that never ends": (
        with_actor(JOB, log=actor(JOB).log[:5], log_head=5, ended=False, feed=feed_of("run.started"), feed_head=1),
        "the run job has not ended",
    ),
    "an approval that waits for ever": (
        with_actor(APPROVAL, log=actor(APPROVAL).log[:1], log_head=1, ended=False),
        "the approval approval has not ended",
    ),
    "two writers of an epoch": (also(owned=Owned(RUN, 2, "n3")), "n3 wrote run under epoch 2 of n2"),
    "a paused writer that goes on": (also(owned=Owned(RUN, 1, "n1")), "n1 wrote run under epoch 1 after 2"),
    "an executor's command after a later one": (
        with_log(RUN, lambda log: log.insert(6, entry(7, "x1.3", "call.cleared"))),
        "run has x1.3 after x2.1",
    ),
    "a command that is written twice": (
        with_log(RUN, lambda log: log.insert(4, entry(5, "a", "call.cleared"))),
        "the command a wrote run twice",
    ),
    "an effect that happens twice": (also(effects=Effect(RUN, "c1", "pay")), "pay did c1 of run again"),
    "an effect of a call that never began": (also(effects=Effect(RUN, "c9", "pay")), "nothing said that it begins"),
    "an effect for another run": (also(effects=Effect(JOB, "c1", "pay", idempotent=True)), "pay did c1 of job"),
    "an output without an effect": (SOUND._replace(effects=SOUND.effects[:1]), "the call c2 has an output"),
    "an acknowledged run that is gone": (also(acknowledged=Acknowledged("started", "gone")), "nothing is stored"),
    "an acknowledged text that is another": (also(acknowledged=Acknowledged("completed", RUN, "well")), "completed"),
    "an acknowledged decision that is not stored": (
        also(acknowledged=Acknowledged("decision", RUN, (APPROVAL, "denied", "ann"))),
        "decision",
    ),
    "an acknowledged delivery that is not stored": (also(acknowledged=Acknowledged("delivery", JOB, "c3")), "delivery"),
    "an acknowledged turn that is not stored": (also(acknowledged=Acknowledged("turn", SESSION, "other")), "turn"),
    "an acknowledged deletion that did not happen": (also(acknowledged=Acknowledged("deleted", SESSION)), "deleted"),
    "two decisions that were acknowledged": (
        also(acknowledged=Acknowledged("decision", RUN, (APPROVAL, "denied", "ann"))),
        "more than one decision was acknowledged",
    ),
    "a run and an approval that differ": (with_event(APPROVAL, 2, outcome="denied"), "was settled as ['approved']"),
    "an approval that is settled twice": (
        with_log(RUN, lambda log: log.insert(4, log[3]._replace(command="c"))),
        "was settled as ['approved', 'approved']",
    ),
    "two runs of one key": (
        also(kept=actor(JOB)._replace(actor="job2")),
        "one key stands for ['job', 'job2']",
    ),
    "a key that is answered by two runs": (
        also(outcomes=Outcome("k", JOB, {"type": "run.completed", "result": {"text": "done"}}, replayed=True)),
        "the key k was answered by ['job', 'run']",
    ),
    "a key whose outcome changes": (
        also(outcomes=Outcome("k", RUN, {"type": "run.failed"}, replayed=True)),
        "the key k was told",
    ),
    "a session that is left running": (
        with_actor(SESSION, log=actor(SESSION).log[:2], log_head=2),
        "the session session is left running run",
    ),
    "a turn that is committed without its end": (with_event(RUN, 8, type="run.failed"), "committed: True"),
    "a turn that ended and is not committed": (
        with_event(SESSION, 3, type="turn.released"),
        "ended as run.completed, committed: False",
    ),
    "two turns at once": (
        with_log(SESSION, lambda log: log.insert(2, entry(3, "d", "turn.reserved", run_id="other"))),
        "turn.reserved of other while run runs",
    ),
    "a turn that another run ends": (with_event(SESSION, 3, run_id="other"), "turn.committed of other, not of run"),
    "a slot that is not given back": (held(runs=("p1",)), "p1 still holds a permit of runs"),
    "a place of a session that is gone": (held(sessions=(SESSION, "gone")), "gone still holds a permit of sessions"),
    "a lease that is still due": (also(due=(RUN, "lease")), "lease of run is still due"),
    "a question that is still asked": (also(listed=("inbox:ann", APPROVAL)), "approval still waits in inbox:ann"),
    "a complaint": (also(complaints="a client was told HISTORY_LOST"), "a client was told HISTORY_LOST"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_each_broken_history_is_found_out(how: str) -> None:
    history, fault = BROKEN[how]
    found = faults(history)
    assert any(fault in one for one in found), found


def test_of_what_was_erased_nothing_is_expected_but_that_it_was() -> None:
    erased = with_actor(SESSION, log=(), ended=True, whole=False)
    assert faults(erased._replace(held={**SOUND.held, "sessions": ()})) == []
