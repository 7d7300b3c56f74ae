"""An event loop on virtual time, on which machines may be paused and killed.

When nothing is ready the time jumps to the next timer, so sleeping costs nothing and all is a function of what is asked.
Whatever is called carries the name of its machine in its context: a paused machine's calls wait, a dead one's never come.
"""

import asyncio
import contextvars
import gc
import heapq
import logging
import random
import sys
import uuid
import warnings
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, TypeVarTuple, Unpack

import anyio.to_thread
from anyio._backends import _asyncio as backend
from typing_extensions import override

import eventstore.clock

T = TypeVar("T")
Words = TypeVarTuple("Words")

MACHINE: contextvars.ContextVar[str] = contextvars.ContextVar("MACHINE", default="")
"""On which machine this runs; empty: outside all nodes."""
EPOCH_S = 1_000.0
TURN_S = 1e-6
"""What one turn of the loop takes, so that time goes on where something is always ready."""
TURNS_MAX = 2_000_000


class Stalled(RuntimeError):
    """Nothing will ever happen any more, or too much happens."""


class Ordered(dict[Any, None]):
    """What anyio keeps in sets by identity, in the order in which it came: addresses decide nothing."""

    def add(self, one: Any) -> None:
        self[one] = None

    def remove(self, one: Any) -> None:
        del self[one]

    def discard(self, one: Any) -> None:
        self.pop(one, None)


class VirtualLoop(asyncio.BaseEventLoop):
    """See the module's first sentence."""

    _ready: deque[Any]

    def __init__(self) -> None:
        super().__init__()
        self._now_s = EPOCH_S
        self._turns = 0
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._count = 0
        self._paused: dict[str, list[Any]] = {}
        self._dead: set[str] = set()
        self._kept: list[Any] = []
        """Whatever a dead machine left: it must not even be cleaned up."""
        made: Any = self._made
        self.set_task_factory(made)

    @override
    def time(self) -> float:
        return self._now_s

    @override
    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Words]], object],
        *args: *Words,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._count += 1
        heapq.heappush(self._timers, (when, self._count, timer))
        return timer

    def pause(self, machine: str) -> None:
        """Let nothing of *machine* run; its timers and messages wait, as behind SIGSTOP."""
        self._paused.setdefault(machine, [])

    def resume(self, machine: str) -> None:
        """Let *machine* go on with all that came meanwhile, in its order."""
        self._ready.extend(self._paused.pop(machine, ()))

    def kill(self, machine: str) -> None:
        """Let nothing of *machine* run ever again, not even what cleans up."""
        self._dead.add(machine)
        self._kept.extend(self._paused.pop(machine, ()))

    def forget(self) -> None:
        """Let go of all tasks, which nothing will carry on."""
        for one in self._kept:
            if isinstance(one, asyncio.Task):
                one._log_destroy_pending = False  # type: ignore[attr-defined]
                backend._task_states.pop(one, None)  # what is known there of a task keeps it alive
        self._kept.clear()
        self._ready.clear()
        self._timers.clear()

    def _made(self, loop: Any, coroutine: Coroutine[Any, Any, Any], **named: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **named)
        self._kept.append(task)
        return task

    def _run_once(self) -> None:
        self._turns += 1
        if self._turns > TURNS_MAX:
            raise Stalled("too much happens")
        timers, ready = self._timers, self._ready
        if not ready:
            while timers and timers[0][2].cancelled():
                heapq.heappop(timers)
            if not timers:
                raise Stalled("nothing will ever happen any more")
            self._now_s = max(self._now_s, timers[0][0])
        self._now_s += TURN_S
        while timers and timers[0][0] <= self._now_s:
            ready.append(heapq.heappop(timers)[2])
        for _ in range(len(ready)):
            self._called(ready.popleft())

    def _called(self, handle: Any) -> None:
        if handle._cancelled:
            return
        machine = handle._context.get(MACHINE, "")
        if not machine:
            handle._run()
        elif machine in self._dead:
            self._kept.append(handle)
        elif machine in self._paused:
            self._paused[machine].append(handle)
        else:
            handle._run()

    def _process_events(self, event_list: Any) -> None:
        pass

    def _write_to_self(self) -> None:
        pass


def of_machine(name: str) -> contextvars.Context:
    """A context in which everything belongs to the machine *name*; empty: to none."""
    context = contextvars.copy_context()
    context.run(MACHINE.set, name)
    return context


def at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """What *coroutine* returns, which never waits."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        value: T = done.value
        return value
    raise AssertionError("it waited")


async def _inline(function: Callable[..., T], *words: Any, **_: Any) -> T:
    """Do in place what else a thread would."""
    await asyncio.sleep(0)
    return function(*words)


def run(main: Callable[[VirtualLoop], Awaitable[T]], seed: int, mono_ms: Callable[[VirtualLoop], int]) -> T:
    """Run *main* on a loop of its own; ids, chance, threads and clocks follow *seed* and that loop."""
    loop = VirtualLoop()
    with _patched(loop, seed, mono_ms):
        asyncio.set_event_loop(loop)
        try:
            return loop.run_until_complete(_awaited(main, loop))
        finally:
            asyncio.set_event_loop(None)
            loop.close()
            loop.forget()
            sys.unraisablehook = _unheard
            logging.disable()


def _unheard(_: object) -> None:
    """Say nothing of what cannot be raised."""


async def _awaited(main: Callable[[VirtualLoop], Awaitable[T]], loop: VirtualLoop) -> T:
    return await main(loop)


@contextmanager
def swept_up() -> Iterator[None]:
    """Drop without a word what the body leaves: whatever was killed closes with complaints."""
    gc.disable()  # not at any moment, and so the same for each seed
    hook = sys.unraisablehook
    try:
        yield
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            gc.collect()
            gc.collect()  # what the first one closed
        sys.unraisablehook = hook
        logging.disable(logging.NOTSET)
        gc.enable()


@contextmanager
def _patched(loop: VirtualLoop, seed: int, mono_ms: Callable[[VirtualLoop], int]) -> Iterator[None]:
    chance = random.Random(f"ids {seed}")  # noqa: S311 - a test's
    random.seed(f"jitter {seed}")

    def fresh() -> uuid.UUID:
        return uuid.UUID(int=chance.getrandbits(128), version=4)

    def clock() -> int:
        return mono_ms(loop)

    scopes: Any = backend.CancelScope
    begun = scopes.__init__

    def begin(scope: Any, *words: Any, **named: Any) -> None:
        begun(scope, *words, **named)
        scope._tasks, scope._child_scopes = Ordered(), Ordered()

    with (
        _instead(uuid, "uuid4", fresh),
        _instead(eventstore.clock, "mono_ms", clock),
        _instead(anyio.to_thread, "run_sync", _inline),
        _instead(scopes, "__init__", begin),
    ):
        yield


@contextmanager
def _instead(owner: Any, name: str, value: Any) -> Generator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
