"""Which provider instances there are and how they stand: probes on request, shared and kept for a while (providers §2)."""

import logging
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

import anyio
from anyio.abc import TaskGroup
from msgspec import Struct

from actors.errors import Failed
from actors.ports import Model, Probe
from providers import listing
from providers.probe import Malformed, sound

_INTERVAL_MAX = 2_147_483_647
_GRACE_MS = 100
"""How much longer than a probe its askers wait: only an adapter that cannot be cancelled takes it."""
_log = logging.getLogger(__name__)


class Intervals(Struct, frozen=True):
    """How long a probe's outcome is kept, how soon a refresh may look again, and how long a probe may take."""

    ttl_ms: int = 30_000
    min_ms: int = 1_000
    timeout_ms: int = 5_000

    def __post_init__(self) -> None:
        """Refuse an interval out of bounds."""
        intervals = (self.ttl_ms, self.min_ms, self.timeout_ms)
        if not all(0 <= one <= _INTERVAL_MAX for one in intervals) or self.timeout_ms == 0:
            raise ValueError(f"discovery intervals lie between 0 and {_INTERVAL_MAX} ms, the timeout above 0")


class Look(Struct, frozen=True):
    """What a probe told, and when by the wall and by the clock that measures ages."""

    probe: Probe
    checked_ms: int
    steady_ms: float


class _Probing:
    """A probe on its way, whoever waits for it."""

    def __init__(self) -> None:
        self.done = anyio.Event()
        self.look: Look | None = None


def fresh(age_ms: float, intervals: Intervals, *, refresh: bool) -> bool:
    """Whether an outcome of that age still answers."""
    return age_ms < max(0 if refresh else intervals.ttl_ms, intervals.min_ms)


def code_of(error: Exception) -> str:
    """The code of providers §2 for what an adapter's probe raised."""
    match error:
        case Malformed():
            return "INVALID_DISCOVERY_RESPONSE"
        case Failed() if error.problem.code in listing.VERDICTS.keys() - {*listing.CATALOG_CODES}:
            return error.problem.code
        case ConnectionError():
            return "PROVIDER_UNREACHABLE"
        case _:
            return "DISCOVERY_FAILED"


class Discovery:
    """Lists instances; used as `async with Discovery(models) as discovery`, which ends its probes with it.

    *wall* and *steady* tell seconds: the time of day for `checkedAt`, and the time that ages are measured by.
    """

    def __init__(
        self,
        models: Mapping[str, Model],
        intervals: Intervals | None = None,
        *,
        wall: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        for instance, model in models.items():
            wrong = "id" if model.info.id != instance else listing.fault(model.info)
            if wrong is not None:
                raise ValueError(f"provider {instance}: {wrong} cannot be shown to clients")
        self._models = models
        self._intervals = intervals or Intervals()
        self._wall = wall
        self._steady = steady
        self._looks: dict[str, Look] = {}
        self._probing: dict[str, _Probing] = {}
        self._open = AsyncExitStack()
        self._tasks: TaskGroup | None = None

    async def __aenter__(self) -> Self:
        self._tasks = await self._open.enter_async_context(anyio.create_task_group())
        self._open.callback(self._tasks.cancel_scope.cancel)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self._tasks = None
        return await self._open.__aexit__(kind, error, trace)

    async def listed(self, ids: Collection[str], *, refresh: bool = False) -> list[listing.Provider]:
        """List the instances among *ids* in configured order, probing at once all that nobody probed lately."""
        chosen = [instance for instance in self._models if instance in ids]
        looks: dict[str, Look] = {}

        async def look(instance: str) -> None:
            looks[instance] = await self._look(instance, refresh=refresh)

        async with anyio.create_task_group() as tasks:
            for instance in chosen:
                tasks.start_soon(look, instance)
        return [self._shown(instance, looks[instance]) for instance in chosen]

    def _shown(self, instance: str, look: Look) -> listing.Provider:
        return listing.provider(self._models[instance].info, look.probe, look.checked_ms)

    async def _look(self, instance: str, *, refresh: bool) -> Look:
        known = self._looks.get(instance)
        if known is not None and fresh(self._steady() * 1_000 - known.steady_ms, self._intervals, refresh=refresh):
            return known
        probing = self._probing.get(instance) or await self._start(instance)
        with anyio.move_on_after((self._intervals.timeout_ms + _GRACE_MS) / 1_000):
            await probing.done.wait()
        return probing.look or await self._seen(Probe("DISCOVERY_TIMEOUT"))

    async def _start(self, instance: str) -> _Probing:
        if self._tasks is None:
            raise RuntimeError("discovery is not open")
        probing = self._probing[instance] = _Probing()
        self._tasks.start_soon(self._probe, instance, probing)
        return probing

    async def _probe(self, instance: str, probing: _Probing) -> None:
        try:
            probing.look = self._looks[instance] = await self._seen(await self._inspect(instance))
        finally:
            del self._probing[instance]
            probing.done.set()

    async def _inspect(self, instance: str) -> Probe:
        try:
            with anyio.move_on_after(self._intervals.timeout_ms / 1_000):
                probe = await self._models[instance].inspect()
                return Probe("DISCOVERY_UNSUPPORTED") if probe is None else sound(probe)
        except Exception as error:  # noqa: BLE001 - whatever an adapter raises is an outcome; its text may hold secrets
            _log.warning("probe of provider %s failed: %s", instance, type(error).__name__)
            return Probe(code_of(error))
        return Probe("DISCOVERY_TIMEOUT")

    async def _seen(self, probe: Probe) -> Look:
        return Look(probe, int(self._wall() * 1_000), self._steady() * 1_000)
