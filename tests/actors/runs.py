"""Requests, commands, frames and sessions for tests of the run, all by value."""

import json
from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any

import msgspec

from actors import codec, run, session
from actors.companions import companions
from actors.decider import Companion, Decision
from actors.errors import Problem
from actors.events import RunAccepted, RunEvent, SessionEvent, SessionMode, SessionTurn, ToolCompleted, TurnCompleted
from actors.request import RunRequest
from eventstore.store import Reason
from projections import wire_feed

NOW = 1_767_607_200_000
RUN_ID = "0b6c2a52-6d0e-4f7e-9a41-5f2f5f3b7c10"
ARTIFACT = "5c0f5f0e-8d0b-4c5e-9a38-0e6f7c1d2b90"
SESSION = "0b6c2a52-7777-4f7e-9a41-5f2f5f3b7c10"
LIMITS = session.Limits(retention_ms=10_000)


def document(**members: Any) -> dict[str, Any]:
    """A request's body, with *members* by their names on the wire."""
    return {"provider": "fake", "model": "m", "input": "hello"} | members


def request(**members: Any) -> RunRequest:
    return msgspec.json.decode(msgspec.json.encode(document(**members)), type=RunRequest)


def accept(*, admitted: bool = True, fingerprint: str = "", max_steps: int = 8, **members: Any) -> run.Accept:
    return run.Accept(
        subject="ann",
        request=request(**members),
        admitted=admitted,
        max_steps=max_steps,
        max_output_tokens=100,
        max_attempts=1,
        idle_timeout_ms=0,
        fingerprint=fingerprint,
        permit="p1",
    )


def folded(events: Iterable[RunEvent], state: run.State | None = None) -> run.State:
    return reduce(run.evolve, events, state or run.New())


def items_of_log(log: Iterable[RunEvent], run_id: str = RUN_ID) -> list[bytes]:
    """The feed of a log as the shell makes it, text deltas aside."""
    feed, items = wire_feed.start(run_id), list[bytes]()
    for event in log:
        feed = wire_feed.fold(feed, event)
        items.extend(wire_feed.items(feed, event))
    return items


def framed(items: Sequence[bytes]) -> bytes:
    """The stream that a client is sent for *items*."""
    return b"".join(wire_feed.frame(number, item) for number, item in enumerate(items, 1))


def event_of(item: bytes, number: int = 1) -> Any:
    return msgspec.json.decode(wire_feed.numbered(number, item))


def beside(run_id: str, before: run.State, events: Iterable[RunEvent]) -> list[Companion]:
    """What the shell writes beside *events* of the run *run_id*."""
    written: list[Companion] = []
    for event in events:
        after = run.evolve(before, event)
        written += companions(run_id, before, event, after)
        before = after
    return written


class Talk:
    """A session by value, and the runs of its turns, written together as the shell writes them."""

    def __init__(self, mode: SessionMode = "history", *, limits: session.Limits = LIMITS, **members: Any) -> None:
        self.now_ms = NOW
        self.limits = limits
        self.state: session.State = session.New()
        self.log: list[SessionEvent] = []
        self.due: dict[Reason, int] = {}
        """What the store was told that must happen to it when."""
        self.runs: dict[str, run.State] = {}
        self.logs: dict[str, list[RunEvent]] = {}
        usual: dict[str, Any] = {"subject": "ann", "provider": "fake", "model": "m", "account": "acct"}
        self.tell(session.Create(mode=mode, limits=limits, **usual | members))

    @property
    def open(self) -> session.Open:
        """The session, which is still there."""
        assert isinstance(self.state, session.Open)
        return self.state

    def tell(self, command: session.Command, *, after_ms: int = 0) -> Decision:
        """Tell the session itself *command*."""
        self.now_ms += after_ms
        before, decision = session.standing(self.state), session.decide(self.state, command, self.now_ms)
        self._follow(decision.events)
        for reason in before.due:
            self.due.pop(reason, None)
        self.due.update(session.standing(self.state).due)
        return decision

    def turn(self, **changes: Any) -> SessionTurn | Problem:
        """What a next turn finds that wishes the right thing, but for *changes*."""
        usual = session.Wish(provider="fake", model="m", revision=self.open.revision, input="hello", continues=True)
        wish = msgspec.structs.replace(usual, **changes)
        return session.turn(SESSION, self.open, len(self.log), wish, self.limits)

    def begin(self, command: run.Accept, run_id: str = RUN_ID) -> SessionTurn:
        """Reserve the next turn for a run, and accept that, in one append."""
        taken = self.turn(input=command.request.input)
        assert isinstance(taken, SessionTurn)
        self.tell_run(msgspec.structs.replace(command, session=taken), run_id)
        return taken

    def tell_run(self, command: run.Command, run_id: str = RUN_ID, *, after_ms: int = 0) -> Sequence[Companion]:
        """Tell a turn's run *command*; what that wrote to the session."""
        self.now_ms += after_ms
        before = self.runs.get(run_id, run.New())
        events = run.decide(before, command, self.now_ms).events
        written = [one for one in beside(run_id, before, events) if one.actor == SESSION]
        self.runs[run_id] = folded(events, before)
        self.logs.setdefault(run_id, []).extend(events)
        for one in written:
            self._append(one)
        return written

    def _append(self, one: Companion) -> None:
        """Write *one* as a store does: only where it was meant to stand."""
        assert one.log == len(self.log), "a conflict"
        assert not isinstance(self.state, session.Gone), "nothing follows the end"
        self._follow([codec.decode_session(one.event)])
        for reason, at in one.due:
            self.due.pop(reason, None)
            if at is not None:
                self.due[reason] = at

    def _follow(self, events: Iterable[SessionEvent]) -> None:
        self.log += events
        self.state = reduce(session.evolve, events, self.state)


def turn_accept(*, revision: int = 0, said: str = "hello", admitted: bool = True, **members: Any) -> run.Accept:
    """The request of a session's turn."""
    return accept(admitted=admitted, input=said, session={"id": SESSION, "revision": revision}, **members)


def counted(history: Sequence[Any], messages: Sequence[Any], instructions: str | None = None) -> int:
    """The bytes of a session's record, as sessions §4 describes it."""
    record: dict[str, Any] = {"history": history, "messages": messages}
    if instructions is not None:
        record["instructions"] = instructions
    return len(json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode())


def messages_of(log: Iterable[RunEvent]) -> list[dict[str, Any]]:
    """The messages of a turn by the log of its run, as a provider's own would be kept."""
    kept: list[dict[str, Any]] = []
    for event in log:
        match event:
            case RunAccepted():
                kept.append({"role": "user", "content": json.loads(bytes(event.request))["input"]})
            case TurnCompleted():
                kept.append(_assistant(event))
            case ToolCompleted():
                output = bytes(event.output).decode()
                kept.append({"role": "tool", "content": output, "callId": event.call_id, "name": event.name})
            case _:
                pass
    return kept


def _assistant(turn: TurnCompleted) -> dict[str, Any]:
    calls = [{"id": one.id, "name": one.name, "arguments": json.loads(bytes(one.arguments))} for one in turn.tool_calls]
    message: dict[str, Any] = {"role": "assistant", "content": turn.text}
    if calls:
        message["toolCalls"] = calls
    if turn.native:
        message["native"] = json.loads(bytes(turn.native))
    return message
