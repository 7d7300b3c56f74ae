"""What clients of the chaos suite do, one thing after the other, each by chance."""

import json
from functools import partial
from typing import Any

import anyio

from tests.history import Effect, Outcome
from tests.strict_values import Object
from tests.system.chaos_client import Client, Seen, both, nothing
from tests.system.cluster import LOST, asking_once
from tests.system.house import LOOK
from tests.system.looks import call_of
from tests.system.processes import POLL_S

GRACE_MS = 5_000
_NOTE: Object = {"wait_ms": 30, "tool_calls": [{"name": "note", "arguments": {"n": 1}}]}
_SAY: Object = {"echo": True, "delay_ms": 15}
SCRIPTS: Object = {
    "say": {"turns": [_SAY]},
    "long": {"turns": [{"repeat": {"text": "tick ", "times": 60}, "delay_ms": 30}]},
    "note": {"turns": [_NOTE, _SAY]},
    "twice": {"turns": [_NOTE | {"stream": ["One ", "moment."], "delay_ms": 20}, _NOTE, _SAY]},
    "reviewed": {"turns": [{"tool_calls": [{"name": "reviewed", "arguments": {"n": 2}}]}, _SAY]},
    "look": {"turns": [{"tool_calls": [{"name": "look", "arguments": {"n": 3}}]}, _SAY]},
}
_TOOLS: Object = {"note": ["note"], "twice": ["note"], "reviewed": ["reviewed"], "look": ["look"]}


class Working(Client):
    """A client that does all there is to do."""

    async def work(self, number: int, over: anyio.Event) -> None:
        """Do one thing after the other until *over*."""
        things = (self.plain, self.leaving, self.resumed, self.keyed, self.job, self.reviewed_job, self.talk)
        at = 0
        while not over.is_set():
            at += 1
            await self.chance.choice(things)(f"{self.subject} {number}.{at}")

    async def plain(self, name: str) -> None:
        """Read a run to its end."""
        seen = Seen([], [])
        model = self.chance.choice(("say", "long", "note", "twice"))
        how = await self.begun(_request(name, model), seen, nothing)
        if how == "parted":
            self.notes.complaints.append(f"the stream of {seen.run_id} ended without an end")
        await self.noted(seen, "plain")

    async def leaving(self, name: str) -> None:
        """Leave a run after some events."""
        seen = Seen([], [])
        await self.begun(_request(name, "long"), seen, nothing, most=self.chance.randint(1, 20))
        await self.noted(seen, "left")

    async def resumed(self, name: str) -> None:
        """Read a run to its end through one host after the other, and do what it asks for."""
        model = self.chance.choice(("say", "long", "note", "twice", "reviewed", "look"))
        document = _request(name, model) | {"resume": {"graceMs": GRACE_MS}, "idempotencyKey": name.replace(" ", ":")}
        seen = Seen([], [])
        how = await self.begun(document, seen, self._act, most=self.chance.choice((0, 3, 10)))
        if seen.events:
            await self.acknowledged("started", seen.run_id)
            await self.followed(seen.run_id, seen, self._act)
        await self.noted(seen, f"resumed {model}")
        if how == "refused":
            return
        again = Seen([], [])
        await self.begun(document, again, self._act)
        await self.noted(again, f"again {model}", f"again {name}")

    async def keyed(self, name: str) -> None:
        """Ask two hosts for one thing at once, and then once more."""
        document = _request(name, self.chance.choice(("say", "note"))) | {"idempotencyKey": name.replace(" ", ":")}
        first, second = self.chance.sample(range(3), 2)
        answers = [*await both(partial(self.asked, document, first), partial(self.asked, document, second))]
        answers.append(await self.asked(document, self.luck.randrange(3)))
        self.notes.ends[f"keyed {'completed' if answers[0][0] == 200 else 'not'}"] += 1
        # A lost history is an unknown outcome: who saw it break off is told so, and who asks later that it is uncertain.
        if len({409 if status == 410 else status for status, _ in answers}) > 1:
            self.notes.complaints.append(f"the key of {name} was answered {answers}")
        for status, body in answers:
            if status == 200:
                end = {"type": "run.completed", "result": {"text": body["text"]}}
                self.notes.outcomes.append(Outcome(name, body["runId"], end, replayed=False))
                await self.acknowledged("completed", body["runId"], body["text"])
            else:
                await self.refused("keyed", body)

    async def job(self, name: str) -> None:
        """Submit a job through two hosts, maybe cancel it, and read it to its end."""
        submission: Object = {
            "key": name.replace(" ", ":"),
            "request": _request(name, self.chance.choice(("note", "twice"))),
        }
        first, second = self.chance.sample(range(3), 2)
        cancels = self.chance.random() < 0.15
        submit = partial(self.posted, "/v1/jobs/submit", submission)
        one, two = await both(partial(submit, first), partial(submit, second))
        if one is None or two is None:
            return
        if one["id"] != two["id"]:
            self.notes.complaints.append(f"the key of {name} stands for {one['id']} and {two['id']}")
        await self.acknowledged("job", one["id"])
        if cancels and await self.posted("/v1/jobs/cancel", {"id": one["id"]}) is not None:
            await self.acknowledged("cancelled", one["id"])
        await self._read_job(one["id"], "job")
        await self._paged(one["id"])

    async def reviewed_job(self, name: str) -> None:
        """Submit a job that asks a person, and be that person."""
        submission: Object = {
            "key": name.replace(" ", ":"),
            "request": _request(name, "reviewed"),
            "interactive": True,
        }
        job = await self.posted("/v1/jobs/submit", submission)
        if job is not None:
            await self.acknowledged("job", job["id"])
            await self._read_job(job["id"], "reviewed job")

    async def talk(self, name: str) -> None:
        """Create a session, take turns, and maybe delete it."""
        wanted: Object = {"provider": "scripted", "model": "say", "mode": "history"}
        turns, deletes = self.chance.randint(1, 3), self.chance.random() < 0.3
        snapshot = await self.posted("/v1/sessions/create", wanted)
        if snapshot is None:
            return
        session_id = snapshot["session"]["id"]
        await self.acknowledged("session", session_id)
        for at in range(turns):
            if not await self._turn(session_id, f"{name}.{at}"):
                return
        if deletes and await self.posted("/v1/sessions/delete", {"id": session_id}) is not None:
            await self.acknowledged("deleted", session_id)

    async def _turn(self, session_id: str, said: str) -> bool:
        """Take a turn; whether the session goes on."""
        session = await self._rested(session_id)
        if session["state"] == "interrupted":
            self.notes.ends["turn interrupted"] += 1
            return False
        document: Object = {**_request(said, "say"), "session": {"id": session_id, "revision": session["revision"]}}
        try:
            host = self.house.host(self.luck.choice(self.house.up or [0]))
            status, body = await asking_once(host, "/v1/runs", document, self.subject)
        except LOST:
            return True
        told: Any = body
        if status == 200:
            self.notes.ends["turn completed"] += 1
            await self.acknowledged("turn", session_id, told["runId"])
        elif not told["error"]["retryable"]:
            await self.refused("turn", told)
        return True

    async def _rested(self, session_id: str) -> Any:
        while True:
            snapshot = await self.posted("/v1/sessions/read", {"id": session_id})
            if snapshot["session"]["state"] != "running":
                return snapshot["session"]
            await anyio.sleep(POLL_S)

    async def _read_job(self, job_id: str, what: str) -> None:
        seen = Seen([], [])
        await self.followed(job_id, seen, self._act)
        await self.noted(seen, what)

    async def _paged(self, job_id: str) -> None:
        """Read the pages of an ended job, which hide nothing here."""
        seen = Seen([], [])
        more = True
        while more:
            asked: Object = {"id": job_id, "after": len(seen.events), "limit": self.luck.choice((4, 10, 100))}
            page = await self.posted("/v1/jobs/events", asked)
            for event in page["events"]:
                seen.events.append((event["sequence"], json.dumps(event, separators=(",", ":")).encode()))
            more = page["hasMore"]
        await self.noted(seen, "pages")

    async def _act(self, event: Any) -> None:
        """Do what an event asks a person or an application to do."""
        if event["type"] == "approval.requested":
            await self._decide(event["approval"])
        elif event["type"] == "tool.execution.requested":
            await self._execute(event["execution"])

    async def _decide(self, approval: Any) -> None:
        """Decide, maybe two ways at once."""
        outcomes = self.luck.choice((("approve",), ("approve",), ("deny",), ("approve", "deny")))
        await both(*(partial(self._decided, approval, outcome) for outcome in outcomes))

    async def _decided(self, approval: Any, decision: str) -> None:
        named = {"approvalId": approval["approvalId"], "runId": approval["runId"], "call": approval["call"]}
        done = await self.posted("/v1/approvals/decisions", named | {"decision": decision})
        if done is not None:
            outcome = {"approve": "approved", "deny": "denied"}[decision]
            await self.acknowledged("decision", approval["runId"], (approval["approvalId"], outcome, self.subject))

    async def _execute(self, execution: Any) -> None:
        """Execute a call once, and deliver what came of it, maybe through two hosts at once."""
        call = call_of(execution["runId"], execution["call"]["id"])
        if any(effect.call == call for effect in self.notes.effects):
            return
        self.notes.effects.append(Effect(execution["runId"], call, "look", application=True))
        named = {
            "executionId": execution["executionId"],
            "runId": execution["runId"],
            "callId": execution["call"]["id"],
        }
        document: Object = {**named, "output": {"found": 3}}
        deliver = partial(self.posted, "/v1/tool-executions/results", document)
        for done in await both(*[deliver] * self.luck.choice((1, 2))):
            if done is not None:
                await self.acknowledged("delivery", execution["runId"], call)


def _request(name: str, model: str) -> Object:
    document: Object = {"provider": "scripted", "model": model, "input": f"{name} has a few words to say about that"}
    if model in _TOOLS:
        document["tools"] = _TOOLS[model]
    if model == "reviewed":
        document["approvals"] = {"mode": "interactive", "idlePolicy": "continue"}
    if model == "look":
        document["applicationTools"] = [LOOK]
    return document
