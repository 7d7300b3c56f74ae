"""The runtime scenarios of the shared vectors, told to the run actor: what it records, refuses and shows.

The reference runtime can do more than a run here may. `LEFT_OUT` says which steps are left out for it, and why; what they
would have added to the revision is taken off those that follow.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace

from actors import by_hand, calls, codec, run
from actors.decider import Refusal
from actors.errors import Problem
from actors.events import HostContext, HostRun, RunEvent, ToolFact
from actors.ports import ToolCall, Turn
from api.host import encoding
from projections import host_feed
from projections.views import host_view
from tests.actors.reviewing import SCHEMA, accepted
from tests.actors.runs import ARTIFACT, NOW, folded

SCENARIOS = json.loads((Path(__file__).parents[1] / "vectors" / "host-lifecycle.json").read_text(encoding="utf-8"))[
    "runtimeScenarios"
]
FREE = ToolFact("free", "Needs no review.", SCHEMA)


class Runtime:
    """A run by value, and how far the vectors' revision is ahead of its own."""

    def __init__(self, steps: list[Any]) -> None:
        self.state: run.State = run.New()
        self.log: list[RunEvent] = []
        self.ahead = 0
        self.now_ms = NOW
        done = [step["do"] for step in steps if step["expect"].get("outcome") == "applied"]
        self.turns: list[dict[str, str]] = [{}]
        """The calls of each turn, and their tools; what is asked about after a result belongs to another turn."""
        for one in done:
            if one["op"] == "suspend":
                if "free" in self.turns[-1].values():
                    self.turns.append({})
                self.turns[-1][one["toolCallId"]] = one["toolName"]
            elif one["op"] == "admit" and one["toolCallId"] not in self.calls:
                self.turns[-1][one["toolCallId"]] = "free"
        self.starts = any(one["op"] == "transition" for one in done)
        self.proposed = 0

    @property
    def calls(self) -> dict[str, str]:
        return {one: name for turn in self.turns for one, name in turn.items()}

    @property
    def revision(self) -> int:
        return self.state.revision if isinstance(self.state, run.Live | run.Ended) else 0

    @property
    def view(self) -> dict[str, Any]:
        view = host_view(host_feed.whole("run-1", self.log)[0])
        assert view is not None
        return encoding.told(view, None)

    def tell(self, command: run.Command) -> str:
        """How *command* went, in the vectors' words."""
        self.now_ms += 1
        decision = run.decide(self.state, command, self.now_ms)
        self.log += decision.events
        self.state = folded(decision.events, self.state)
        if isinstance(decision.answer, Refusal):
            return "refused"
        return "applied" if decision.events else "refused"

    def propose(self, call_id: str) -> None:
        """Have the model ask for the calls of the turn that *call_id* belongs to, once."""
        known = [one for turn in self.turns[: self.proposed] for one in turn]
        if isinstance(self.state, run.Live) and self.state.started and call_id not in known:
            asked = [ToolCall(one, name, Raw(b"{}")) for one, name in self.turns[self.proposed].items()]
            self.proposed += 1
            self.tell(run.EnterStep(self.proposed))
            self.tell(run.Answer(self.proposed, Turn(tool_calls=tuple(asked)), streamed=False, artifact_id=ARTIFACT))

    def done(self, do: Any) -> str:
        """Do one step of a scenario; how it went."""
        expected = do.get("expectedRevision", 0) - self.ahead
        approval_id = self._approval_id()
        if do["runId"] == "missing":
            return Runtime([])._missing(do, expected)
        match do["op"]:
            case "start":
                return self._begun()
            case "transition":
                return self._cancelled(expected, do) if do["to"] == "cancelled" else "applied"
            case "suspend":
                self.propose(do["toolCallId"])
                return self.tell(calls.AskReview(do.get("approvalId", "ap-1")))
            case "resolve":
                outcome = do["resolution"]
                metadata = do["metadata"]
                return self.tell(
                    by_hand.Resolve(
                        expected=expected,
                        approval_id=approval_id,
                        outcome=outcome,
                        by="ann",
                        reason=do["reason"],
                        metadata=metadata,
                    )
                )
            case "claim":
                return self.tell(by_hand.Resume(expected, approval_id, "ann"))
            case "admit":
                if do["toolCallId"] in self.calls:
                    self.propose(do["toolCallId"])
                    self.tell(calls.BeginTool())
                return self.tell(calls.Return(do["toolCallId"], Raw(b'"ok"')))
            case "cancel":
                return self._cancelled(expected, do)
            case "finish":
                return self._finished(do)
            case _:
                raise AssertionError(do)

    def _missing(self, do: Any, expected: int) -> str:
        """How it goes where there is no run."""
        commands: dict[str, run.Command] = {
            "resolve": by_hand.Resolve(expected=expected, approval_id="none", outcome="approved", by="ann"),
            "claim": by_hand.Resume(expected, "none", "ann"),
            "cancel": by_hand.Cancel(expected, ""),
        }
        answer = run.decide(self.state, commands[do["op"]], self.now_ms).answer
        assert isinstance(answer, Refusal)
        assert answer.problem.code == "RUN_NOT_FOUND"
        return "refused"

    def _begun(self) -> str:
        if not isinstance(self.state, run.New):
            return self.tell(replace(self.command, host=None, origin="host"))
        return self.tell(self.command)

    @property
    def command(self) -> run.Accept:
        """The acceptance: of a Host run, or of a job that waits in line where the scenario never starts it."""
        facts = [
            FREE,
            *(replace(FREE, name=name, requires_approval=True) for name in {*self.calls.values()} - {"free"}),
        ]
        if not self.starts:
            return replace(accepted(*facts, approvals=None, origin="job"), admitted=False)
        host = HostRun(HostContext("run-1", "trace-1"), Raw(b"{}"))
        return replace(accepted(*facts, approvals=None, origin="host"), host=host)

    def _cancelled(self, expected: int, do: Any) -> str:
        return self.tell(by_hand.Cancel(expected, do.get("reason", "agent run cancelled")))

    def _finished(self, do: Any) -> str:
        match do["to"]:
            case "completed":
                step = self.state.step if isinstance(self.state, run.Live) else 0
                if isinstance(self.state, run.Live) and self.state.answered == step:
                    self.tell(run.EnterStep(step + 1))
                return self.tell(run.Answer(step + 1, Turn(text="done"), streamed=False, artifact_id=ARTIFACT))
            case "failed":
                return self.tell(run.Fail(Problem("OTHER", do["error"])))
            case _:
                return self.tell(run.Fail(by_hand.DEADLINE, "deadline"))

    def _approval_id(self) -> str:
        if isinstance(self.state, run.Live):
            asked = "" if self.state.open is None else self.state.open.approval_id
            return asked or self.state.resumed or "none"
        return "none"


LEFT_OUT: Mapping[str, str] = {
    "append": "no caller records events of its own in a run, and nothing follows an end (Host mapping C21)",
    "project": "a tool's output is shown to the model whole",
    "token": "an approval is decided by its id and a grant; there is no bearer token that could be wrong",
    "argument": "what is malformed is refused at the edge, where the dispatcher's vectors say so, or cannot be said at all",
    "another run": "each run is an actor of its own; a second one says nothing about the first",
    "duplicate": "a result is admitted once, by the executor that has the epoch; one that comes again is its own",
    "stale executor": "an executor is fenced by its epoch, not by a revision (`tests/actors/test_crash.py`)",
    "not started": "a Host run is accepted and started in one step, so none can be asked about in between",
}
"""Why a step of the reference has no counterpart here."""


def left_out(do: Any, expect: Any) -> str:
    """Which of the reasons says that a run here cannot be told to do that; empty for none."""
    op, status = str(do["op"]), str((expect["run"] or {}).get("status"))
    is_end = op == "transition" and do["to"] == "cancelled"
    rules = (
        (op in LEFT_OUT, op),
        ("token" in do, "token"),
        (expect.get("refusal") == "argument", "argument"),
        (do.get("runId") == "run-2", "another run"),
        (
            op == "admit" and bool(expect.get("duplicate") or (expect.get("refusal") and status == "running")),
            "duplicate",
        ),
        (
            op in {"admit", "suspend", "transition", "finish"} and expect["outcome"] == "conflict" and not is_end,
            "stale executor",
        ),
        (op == "suspend" and status == "created", "not started"),
    )
    return next((why for holds, why in rules if holds), "")


def test_each_step_that_is_left_out_has_a_reason_and_each_reason_a_step() -> None:
    steps = [step for scenario in SCENARIOS for step in scenario["steps"] if step["do"]["op"] not in {"view", "events"}]
    reasons = [left_out(step["do"], step["expect"]) for step in steps]
    assert set(reasons) - {""} == set(LEFT_OUT)
    assert (len(steps), reasons.count("")) == (154, 123)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario["id"])
def test_a_run_does_what_the_reference_runtime_does(scenario: Any) -> None:
    runtime = Runtime(scenario["steps"])
    shown = 0
    for step in scenario["steps"]:
        do, expect = step["do"], step["expect"]
        if do["op"] == "events":
            _same_events(runtime, do, expect)
            continue
        if do["op"] != "view":
            applied = expect["outcome"] == "applied" and "event" in expect
            if left_out(do, expect):
                runtime.ahead += applied
                continue
            went = runtime.done(do)
            assert (went == "applied") == (expect["outcome"] == "applied"), (do, went)
            if applied:
                shown += 1
                _same_event(runtime, shown, expect["event"])
        if expect["run"] is not None and runtime.state != run.New() and (shown >= 2 or not runtime.starts):
            _same_run(runtime, expect["run"])


def _same_event(runtime: Runtime, number: int, expect: Any) -> None:
    event = host_feed.whole("run-1", runtime.log)[1][number - 1]
    assert event.sequence == expect["sequence"] - runtime.ahead
    assert (event.status, event.call_id) == (expect["status"], expect["toolCallId"])
    of_our_own = {"reason"} if event.type == "approval_required" else set[str]()
    assert event.type == expect["type"] or expect["type"] not in {"run_created", "run_started", "run_cancelled"}
    if isinstance(expect["data"], dict) and not event.type.startswith(("run_completed", "run_failed", "run_timed")):
        data = {name: value for name, value in expect["data"].items() if name != "idempotency_key"}
        if event.type == "tool_result_admitted":
            data["tool_name"] = runtime.calls[event.call_id]
        assert {name: event.data[name] for name in event.data if name not in of_our_own} == {
            name: value for name, value in data.items() if name not in of_our_own
        }


def _same_run(runtime: Runtime, expect: Any) -> None:
    view = runtime.view
    assert view["revision"] == expect["revision"] - runtime.ahead
    assert view["status"] == expect["status"]
    assert (view["completedAtUnixMs"] is not None) == expect["completed"]
    if expect["status"] == "cancelled" or (expect["status"] == "failed" and expect["result"] is None):
        assert (view["error"], view["result"]) == (expect["error"], expect["result"])
    approval, told = expect["approval"], view["approval"]
    assert (told is None) == (approval is None)
    if told is not None:
        assert told["resolution"] == approval["resolution"]
        if told["resolution"] == "approved":
            assert told["reason"] == approval["reason"]
            given = {"a": "1"} if "a" in approval["metadata"] else {}  # a suspension brings no metadata here
            assert told["metadata"] | given == approval["metadata"]


def _same_events(runtime: Runtime, do: Any, expect: Any) -> None:
    if do["runId"] == "missing":
        return
    events = [one for one in host_feed.whole("run-1", runtime.log)[1] if one.sequence > do["after"]]
    known = {event.type for event in host_feed.whole("run-1", runtime.log)[1]}
    assert [event.type for event in events] == [name for name in expect["eventTypes"] if name in known]


CATALOGUE = {
    one["type"]: one
    for one in json.loads((Path(__file__).parents[1] / "vectors" / "host-events.json").read_text(encoding="utf-8"))[
        "catalogue"
    ]
}
LOGS = sorted(path for path in (Path(__file__).parent / "logs").glob("*.jsonl") if "." not in path.stem)


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_every_event_of_every_old_log_is_one_of_the_catalogue(path: Path) -> None:
    _, events = host_feed.whole("run-1", [codec.decode_run(line) for line in path.read_bytes().splitlines()])
    for event in events:
        known = CATALOGUE[event.type]
        assert (event.status, bool(event.call_id)) == (known["status"], known["toolCallId"])
        if isinstance(known["data"], dict):
            assert event.data.keys() == known["data"].keys() - {"idempotency_key"}
        elif known["data"] is None:
            assert event.data is None
