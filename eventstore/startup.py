"""What a node checks before it serves: that Redis keeps what the profile promises, and that it is our deployment.

`findings` is the rules, over facts that `facts` gathered; `deployment` creates or finds the record of the deployment.
`patiently` waits for a Redis that is not there yet, and for nothing that waiting does not mend.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar

import anyio
import msgspec
from msgspec import Struct

from eventstore import keys
from eventstore.endpoint import DELAY_S_MAX, Endpoint, said
from eventstore.link import ELSEWHERE, Call, ConnectionLost, Link, ReplyError, Unfit, passing
from eventstore.shape import Doors
from eventstore.socket_link import open_link
from eventstore.store import Deployment

T = TypeVar("T")
Profile: TypeAlias = Literal["memory", "local", "standard", "strict"]

_ASKED: Final = (
    "appendfsync",
    "maxmemory-clients",
    "min-replicas-to-write",
    "min-replicas-max-lag",
)
_VERSION_MIN: Final = (7, 0)
_RECORD: Final = "deployment"
_LAID: Final = "laid"
"""Set beside the ledger once every partition has its own record: from then on a missing one is a loss."""
_TOLD_EACH_S: Final = 30.0
"""Between two log lines about a Redis that is waited for."""

_log = logging.getLogger(__name__)


class StartupRefused(Unfit):
    """This Redis must not be used with these settings; the text says what to change."""


async def patiently(start: Callable[[], Awaitable[T]], patience_s: float) -> T:
    """Call *start* until it succeeds; what may pass by itself is waited for, at most *patience_s* and the try under way.

    Raises:
        ConnectionLost: it did not pass in time.
        ReplyError: the server refuses the account; or it pauses, and nobody waits.
        Unfit: the server must not be used as it is.
    """
    began_s = anyio.current_time()
    told_s, delay_s = began_s - _TOLD_EACH_S, 0.1
    while True:
        try:
            return await start()
        except (ConnectionLost, ReplyError) as error:
            waited_s = anyio.current_time() - began_s
            if not passing(error) or not patience_s:
                raise
            if waited_s >= patience_s:
                raise ConnectionLost(f"{said(error)} (waited {waited_s:.0f} s for it)") from error
            if anyio.current_time() >= told_s + _TOLD_EACH_S:
                told_s = anyio.current_time()
                _log.warning("waiting up to %.0f s for Redis: %s", patience_s - waited_s, said(error))
        pause_s = delay_s * random.uniform(0.5, 1.5)  # noqa: S311 - spreads nodes, guards nothing
        await anyio.sleep(min(pause_s, patience_s - waited_s))
        delay_s = min(delay_s * 2, DELAY_S_MAX)


class Finding(NamedTuple):
    """One thing that is not as the profile wants it."""

    level: Literal["error", "warning"]
    what: str
    mend: str


class Facts(Struct, frozen=True):
    """What a server says about itself: INFO, and the settings that INFO does not tell, where CONFIG is permitted."""

    info: Mapping[str, str]
    config: Mapping[str, str] | None
    failover: bool = False
    """Whether Sentinel or Cluster may promote another server, whatever replicas are connected now."""


def findings(profile: Profile, facts: Facts, lease_ms: int) -> Sequence[Finding]:
    """Everything about *facts* that breaks or weakens *profile*, errors first."""
    if profile == "memory":
        return ()
    found = [*_kind(facts), *_keeping(facts), *_replication(profile, facts, lease_ms), *_settings(profile, facts)]
    return sorted(found, key=lambda finding: finding.level)


def _kind(facts: Facts) -> Sequence[Finding]:
    """What is wrong with the sort of server it is."""
    info, found = facts.info, list[Finding]()
    version = info.get("redis_version", "0")
    if tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < _VERSION_MIN:
        found.append(Finding("error", f"the server is version {version}", "use Redis or Valkey 7.0 or later"))
    if info.get("redis_mode") == "sentinel":
        found.append(Finding("error", "this is a Sentinel, not a server", "name the primary that it watches"))
    elif info.get("role", "master") != "master":
        at = f"{info.get('master_host', '?')}:{info.get('master_port', '?')}"
        found.append(Finding("error", "the server is a replica", f"connect to its primary, {at}"))
    return found


def _keeping(facts: Facts) -> Sequence[Finding]:
    """What would be thrown away, or not be written to disk."""
    info, found = facts.info, list[Finding]()
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        what = f"maxmemory-policy is {policy}: a full server throws runs away"
        found.append(Finding("error", what, "set maxmemory-policy noeviction"))
    if info.get("aof_enabled") != "1":
        found.append(Finding("error", "appendonly is off: a restart loses every run", "set appendonly yes"))
    elif info.get("aof_last_write_status", "ok") != "ok":
        found.append(Finding("error", "the append-only file cannot be written", "look at the server's disk and log"))
    return found


def replicated(facts: Facts) -> bool:
    """Whether another server may take the place of this one."""
    replicas = facts.info.get("connected_slaves", "0") != "0"
    return replicas or facts.failover or facts.info.get("cluster_enabled") == "1"


def awaited(profile: Profile, many: Iterable[Facts]) -> int:
    """How many replicas must have a write before it is acknowledged: under `strict` as many as the primaries demand."""
    wanted = [(facts.config or {}).get("min-replicas-to-write", "1") for facts in many if replicated(facts)]
    return max(map(int, wanted), default=0) if profile == "strict" else 0


def _replication(profile: Profile, facts: Facts, lease_ms: int) -> Sequence[Finding]:
    """What would let two primaries serve, and so two nodes execute one run."""
    if not replicated(facts):
        return ()
    found: list[Finding] = []
    if facts.config is None:
        if profile == "strict":
            what = "CONFIG GET is not permitted, so how many replicas must have a write is not known"
            found.append(Finding("error", what, "grant this user `+config|get` in its ACL"))
        return found
    if int(facts.config.get("min-replicas-to-write", "0")) < 1:
        what = "min-replicas-to-write is 0: a primary that was cut off goes on accepting writes"
        found.append(Finding("error", what, "set min-replicas-to-write 1"))
    lag_s = int(facts.config.get("min-replicas-max-lag", "0"))
    if not 0 < lag_s * 1_000 < lease_ms:
        what = f"min-replicas-max-lag is {lag_s} s, not below the lease of {lease_ms / 1_000:g} s"
        found.append(Finding("error", what, f"set min-replicas-max-lag {max(1, lease_ms // 2_000)}"))
    return found


def _settings(profile: Profile, facts: Facts) -> Sequence[Finding]:
    """What is wrong with settings that only CONFIG tells."""
    if facts.config is None:
        what = "CONFIG GET is not permitted: " + ", ".join(_ASKED) + " were not checked"
        return [Finding("warning", what, "grant this user `+config|get` in its ACL, or check them yourself")]
    found: list[Finding] = []
    fsync = facts.config.get("appendfsync", "")
    if profile == "strict" and fsync != "always":
        what = f"appendfsync is {fsync}: profile strict promises that what was acknowledged is kept"
        found.append(Finding("error", what, "set appendfsync always, or use profile standard"))
    elif fsync == "no":
        what = "appendfsync is no: a crash may lose far more than the last second"
        found.append(Finding("error", what, "set appendfsync everysec"))
    if profile != "local" and facts.config.get("maxmemory-clients", "0") == "0":
        what = "maxmemory-clients is not set: slow subscribers can fill the server's memory"
        found.append(Finding("error" if profile == "strict" else "warning", what, "set maxmemory-clients 20%"))
    return found


def checked(found: Sequence[Finding]) -> Sequence[Finding]:
    """The warnings in *found*.

    Raises:
        StartupRefused: there are errors in it.
    """
    errors = [finding for finding in found if finding.level == "error"]
    if errors:
        raise StartupRefused("; ".join(f"{error.what} ({error.mend})" for error in errors))
    return found


async def facts(call: Call, *, failover: bool = False) -> Facts:
    """Ask a server about itself."""
    info = _info(await call("INFO"))
    try:
        answers = [await call("CONFIG", "GET", name) for name in _ASKED]
    except ReplyError:
        return Facts(info, None, failover)
    return Facts(info, {pair[0].decode(): pair[1].decode() for pair in answers if pair}, failover)


async def look_again(call: Call, profile: Profile, lease_ms: int, *, failover: bool) -> None:
    """Look at a server that took another's place while we serve: replicas have settings of their own.

    Raises:
        StartupRefused: it does not keep what `strict` promises; other profiles go on, and say so.
    """
    found = findings(profile, await facts(call, failover=failover), lease_ms)
    for finding in found:
        level = logging.ERROR if finding.level == "error" else logging.WARNING
        _log.log(level, "the server that took over: %s: %s", finding.what, finding.mend)
    if profile == "strict":
        checked(found)


async def facts_of_all(doors: Doors) -> Mapping[str, Facts]:
    """Ask every primary behind *doors* about itself; answers by address.

    Raises:
        ConnectionLost: one does not answer.
        ReplyError: one refuses our account, or was demoted since it was found.
        Unfit: its certificate is not trusted.
    """
    return {repr(primary): await _facts_at(primary, failover=doors.failover) for primary in await doors.primaries()}


async def _facts_at(server: Endpoint, *, failover: bool) -> Facts:
    async with open_link(server, name="runstream-check") as link:
        told = await facts(link.call, failover=failover)
    if failover:
        _insist(told.info)
    return told


def _insist(info: Mapping[str, str]) -> None:
    """Nothing, if the server of *info* is a primary; one that is none any more is a pause, until it is asked who is."""
    if info.get("role", "master") != "master":
        raise ReplyError("READONLY the server is a replica")


def findings_of_all(profile: Profile, told: Mapping[str, Facts], lease_ms: int) -> Sequence[Finding]:
    """The findings about each server of *told*, errors first; of several servers each is named."""
    found = [
        finding._replace(what=f"{server}: {finding.what}") if len(told) > 1 else finding
        for server, facts in told.items()
        for finding in findings(profile, facts, lease_ms)
    ]
    return sorted(found, key=lambda finding: finding.level)


async def deployment(link: Link, fresh: Deployment, pinned_id: str = "", pinned_key: bytes = b"") -> Deployment:
    """Create the deployment as *fresh*, or find the one there is; `{g}` first, then every partition.

    Raises:
        StartupRefused: it is not the pinned one, has other partitions or layout, or a record is lost.
    """
    tags = keys.tags(fresh.partitions)
    laid = await link.call("HGET", keys.meta(keys.LEDGER_TAG), _LAID) is not None  # first: others may lay them now
    here, there = await _records(link, tags)
    if here is None and any(there):
        raise StartupRefused("partitions exist, but the record of the deployment is gone: restore {g}:meta or all data")
    if here is None:
        await link.call("HSETNX", keys.meta(keys.LEDGER_TAG), _RECORD, msgspec.json.encode(fresh))
        here, there = await _records(link, tags)
    found = _decoded(here)
    _compare(found, fresh, pinned_id, pinned_key)
    await _lay(link, found, tags, there, laid=laid)
    return found


Unknown: TypeAlias = Callable[[Call, str], Awaitable[None]]
"""Told of a history that is met for the first time; raises `Unfit` to refuse it.

It has the connection that met it, and nothing else: whatever it asked the store would wait for itself.
"""


class Guard:
    """What each new connection to a primary must pass: that it is one, and that it is ours. See `link.OnConnected`."""

    def __init__(self, on_unknown: Unknown | None = None) -> None:
        self.pinned: Deployment | None = None
        """Set once the deployment is known; from then on a server without it, or with another, is refused."""
        self.replication_id = ""
        """The history the server is on; a new one may have lost the end of the old."""
        self._on_unknown = on_unknown
        self._known: set[str] = set()
        self._one_at_a_time = anyio.Lock()

    async def __call__(self, call: Call, /) -> None:
        info = _info(await call("INFO", "replication"))
        _insist(info)
        if self.pinned is not None:
            await _ours(call, self.pinned)
        self.replication_id = info.get("master_replid", "")
        async with self._one_at_a_time:  # the second connection to a history waits until the first has looked at it
            if self.replication_id not in self._known and self._on_unknown is not None:
                await self._on_unknown(call, self.replication_id)
            self._known.add(self.replication_id)


async def _ours(call: Call, pinned: Deployment) -> None:
    """Refuse a server that lost a record of *pinned*, or has another's; a primary of a cluster is asked for its own."""
    tags = keys.tags(pinned.partitions)
    asked = [call("HGET", keys.meta(tag), _RECORD) for tag in (keys.LEDGER_TAG, *tags)]
    here, *there = await asyncio.gather(*asked, return_exceptions=True)
    for reply in (here, *there):
        if isinstance(reply, BaseException) and not _elsewhere(reply):
            raise reply
    if not isinstance(here, BaseException) and (here is None or _decoded(here) != pinned):
        raise StartupRefused("the server no longer holds our deployment; restore its data")
    lost = [tag for tag, record in zip(tags, there, strict=True) if record != _mine(pinned) and not _elsewhere(record)]
    if lost:
        raise StartupRefused(f"the server no longer holds our partitions {', '.join(lost[:5])}; restore its data")


def _elsewhere(reply: Any) -> bool:
    """Whether *reply* says that another server has the key, or that nobody has it now."""
    return isinstance(reply, ReplyError) and reply.code in ELSEWHERE


async def _records(link: Link, tags: Sequence[str]) -> tuple[bytes | None, Sequence[bytes | None]]:
    """Return the record beside the ledger, and the partitions'; empty where there is none."""
    wanted = [("HGET", keys.meta(tag), _RECORD) for tag in (keys.LEDGER_TAG, *tags)]
    here, *there = [_sound(reply) for reply in await link.pipeline(wanted)]
    return here, there


async def _lay(
    link: Link, found: Deployment, tags: Sequence[str], there: Sequence[bytes | None], *, laid: bool
) -> None:
    """Give every partition its record, once; afterwards a missing or different one is refused."""
    mine = _mine(found)
    for tag, record in zip(tags, there, strict=True):
        if record not in (None, mine):
            raise StartupRefused(f"partition {tag} belongs to another deployment or layout: {record!r}, not {mine!r}")
    if None not in there:
        return
    if laid:
        lost = [tag for tag, record in zip(tags, there, strict=True) if record is None]
        raise StartupRefused(
            f"the records of partitions {', '.join(lost[:5])} are lost, and so may be runs: restore them"
        )
    for reply in await link.pipeline([("HSETNX", keys.meta(tag), _RECORD, mine) for tag in tags]):
        _sound(reply)
    await link.call("HSET", keys.meta(keys.LEDGER_TAG), _LAID, 1)


def _mine(deployment: Deployment) -> bytes:
    """The record of *deployment* in each partition."""
    return f"{deployment.id}|{deployment.partitions}|{deployment.layout}".encode()


def _compare(found: Deployment, fresh: Deployment, pinned_id: str, pinned_key: bytes) -> None:
    """Nothing, if the deployment *found* is the one the settings mean."""
    if pinned_id and found.id != pinned_id:
        raise StartupRefused(f"this is deployment {found.id}, and the settings pin {pinned_id}: another Redis is meant")
    if pinned_key and found.id_key != pinned_key:
        raise StartupRefused("the key of derived ids is not the one the settings pin: it must never change")
    if found.partitions != fresh.partitions:
        raise StartupRefused(
            f"the deployment has {found.partitions} partitions for ever, and the settings say {fresh.partitions}"
        )
    if found.layout != fresh.layout:
        raise StartupRefused(f"the data has layout {found.layout}, and this program reads layout {fresh.layout}")


def _decoded(record: bytes | None) -> Deployment:
    """The deployment in *record*."""
    try:
        return msgspec.json.decode(record or b"", type=Deployment)
    except msgspec.DecodeError as error:
        raise StartupRefused(f"{{g}}:meta does not hold a deployment this program can read: {error}") from error


def _sound(reply: Any) -> Any:
    """*reply*, unless it is an error."""
    if isinstance(reply, ReplyError):
        raise reply
    return reply


def _info(text: bytes) -> Mapping[str, str]:
    """INFO's lines as a mapping."""
    pairs = (line.partition(":") for line in text.decode(errors="replace").splitlines() if ":" in line)
    return {name: value.strip() for name, _, value in pairs}
