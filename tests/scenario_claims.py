"""What a scenario says of its hosts beside what they answer: effects, audit, what the model was asked, what is stored."""

import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from actors import run
from actors.ports import AssistantMessage, ModelRequest
from api.server import Config as Listener
from api.server import NotServed, serve
from runstream.settings import SettingsError
from runstream.sources import Places, Told, settings_of
from tests.scenario_words import Config, Names, fits
from tests.scenario_world import World

_ABOUT = frozenset({"do", "eventually", "note", "setup", "with"})


class Seen(NamedTuple):
    """What a scenario asks about."""

    world: World
    names: Names
    raw: bytes
    """All that was streamed."""
    runs: Sequence[str]
    """Every run that was streamed."""


async def faults(step: Config, seen: Seen) -> list[str]:
    """What *step* says of the hosts and is not so."""
    told: list[str] = []
    for name, value in step.items():
        if name not in _ABOUT:
            found, wanted = await CLAIMS[name](seen, value), seen.names.resolved(value)
            wanted = {run_id: _one_of(claim) for run_id, claim in wanted.items()} if name == "store" else wanted
            told.extend([f"{name}: {found}, not {value}"] * (not fits(found, wanted)))
    return told


async def _audit(seen: Seen, kinds: Any) -> Any:
    found = [record["type"] for record in await seen.world.audit()]
    return {kind: found.count(kind) for kind in kinds}


async def _last_audit(seen: Seen, _: Any) -> Any:
    records = await seen.world.audit()
    return records[-1]["type"] if records else None


async def _audit_contains(seen: Seen, wanted: Any) -> Any:
    records = map(_flat, await seen.world.audit())
    return next((wanted for one in records if one == one | wanted), 0)


async def _usage_status(seen: Seen, _: Any) -> Any:
    state, _heads = await seen.world.nodes[-1].host.state(seen.runs[-1])
    return state.kind if isinstance(state, run.Ended) else "live"


async def _aborted(seen: Seen, _: Any) -> Any:
    return await _usage_status(seen, _) == "cancelled"


async def _never_shown(seen: Seen, text: Any) -> Any:
    return seen.raw if text.encode() in seen.raw else text


async def _model_inputs(seen: Seen, wanted: Any) -> Any:
    asked = seen.world.model.asked
    return [_asked(one["call"], asked[one["call"] - 1]) for one in wanted]


async def _store(seen: Seen, wanted: Any) -> Any:
    ids = {name: str(seen.names.resolved(name)) for name in wanted}
    return {name: await _kept(seen.world, run_id) for name, run_id in ids.items()}


def _one_of(claim: Config) -> Config:
    """A claim about a job, with the states that it may be in as one of our operators."""
    rest = {name: value for name, value in claim.items() if name != "stateOneOf"}
    return {**rest, "state": {"$oneOf": claim["stateOneOf"]}} if "stateOneOf" in claim else rest


async def _kept(world: World, run_id: str) -> Any:
    """What is stored of a job, in the words of the scenarios."""
    kept = await world.kept(run_id)
    if kept is None:
        return {"exists": False}
    state = None if kept.job is None else kept.job.state
    found: dict[str, Any] = {"exists": True, "state": state, "payload": kept.job and "there"}
    found["eventTypes"] = [event["type"] for event in kept.events]
    if kept.events and "error" in kept.events[-1]:
        found["terminalErrorCode"] = kept.events[-1]["error"]["code"]
    return found


async def _second_start(seen: Seen, _: Any) -> Any:
    """Start one more host on a port that somebody has."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        where = Listener(port=taken.getsockname()[1])
        async with seen.world.another() as node:
            try:
                await serve(node.app, where, on_ready=lambda _: None, drain=lambda: None)
            except NotServed:
                return "fails"
    return "serves"


def startup_errors(config: Config) -> str:
    """What the settings that say the same as *config* are told, section by section."""
    kept = {name: config[name] for name in ("sessions", "jobs") if config.get(name)}
    document = {name: {_snake(key): value for key, value in section.items()} for name, section in kept.items()}
    nowhere = Path("/nowhere")
    try:
        settings_of(document, Places(nowhere, nowhere, nowhere), nowhere, Told("file", {}, {}))
    except SettingsError as error:
        return str(error)
    return ""


def _of(value: Callable[[Seen], Any]) -> Callable[[Seen, Any], Awaitable[Any]]:
    async def found(seen: Seen, _: Any) -> Any:
        return value(seen)

    return found


async def _blocked(seen: Seen, step: Any) -> Any:
    return step if seen.world.model.blocked[step] else None


async def _pending(seen: Seen, _: Any) -> Any:
    return await seen.world.pending()


async def _stored_jobs(seen: Seen, _: Any) -> Any:
    return (await seen.world.counted("jobs")).held


async def _waiting(seen: Seen, _: Any) -> Any:
    return (await seen.world.counted("runs")).waiting


async def _lease_free(seen: Seen, _: Any) -> Any:
    return not any(node.host.node.executing for node in seen.world.nodes)


CLAIMS: Mapping[str, Callable[[Seen, Any], Awaitable[Any]]] = {
    "effects": _of(lambda seen: seen.world.effects),
    "effectCount": _of(lambda seen: len(seen.world.effects)),
    "modelCalls": _of(lambda seen: seen.world.model.calls),
    "modelCallsAfterRestart": _of(lambda seen: seen.world.model.calls - seen.world.calls_before),
    "modelBlockedAtStep": _blocked,
    "modelInputs": _model_inputs,
    "audit": _audit,
    "lastAudit": _last_audit,
    "auditContains": _audit_contains,
    "pending": _pending,
    "usageStatus": _usage_status,
    "modelSignalAborted": _aborted,
    "noEventContains": _never_shown,
    "store": _store,
    "storeCount": _stored_jobs,
    "inMemoryQueueLength": _waiting,
    "leaseFree": _lease_free,
    "secondHostStartOnUsedPort": _second_start,
}


def _flat(record: Config) -> dict[str, Any]:
    """An audit record with the members of its resolution beside its own, as scenarios name them."""
    return {**record, **record.get("resolution", {})}


def _asked(call: int, request: ModelRequest) -> Any:
    natives = [bytes(one.native) for one in request.messages if isinstance(one, AssistantMessage) and one.native]
    return {
        "call": call,
        "instructions": request.instructions,
        "firstMessage": request.messages[0].content,
        "containsOpaque": any(b"private" in one for one in natives),
    }


def _snake(name: str) -> str:
    return "".join(f"_{each.lower()}" if each.isupper() else each for each in name)
