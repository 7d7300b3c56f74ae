"""Usage records as a file of JSON lines: the sink of a host that has no other.

Any number of hosts may write to one file: a batch of lines is one write at its end.
"""

import asyncio
import errno
import fcntl
import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

LINES_MAX = 10_000
"""Records that may wait for the disk; one more is refused, and comes again with a later sweep."""


class _Line(NamedTuple):
    data: bytes
    kept: asyncio.Future[None]


class JsonLines:
    """Appends each record to *path*; with *sync* its bytes are on the disk before it counts as kept.

    One thread writes whatever waits, and ends when nothing does. It is no hindrance to an exit, and a stalled disk
    holds one thread only: who does not wait any longer leaves the line to it.
    """

    def __init__(self, path: Path, *, sync: bool = False) -> None:
        self._path = path
        self._sync = sync
        self._lock = threading.Lock()
        self._waiting: list[_Line] = []
        self._writing = False

    async def __call__(self, record: Mapping[str, Any], /) -> None:
        """Keep *record*.

        Raises:
            OSError: the file does not take it.
            BufferError: too many records wait already.
        """
        loop = asyncio.get_running_loop()
        line = _Line(msgspec.json.encode(record) + b"\n", loop.create_future())
        with self._lock:
            if len(self._waiting) >= LINES_MAX:
                raise BufferError("too many usage records wait for the disk")
            self._waiting.append(line)
            begins, self._writing = not self._writing, True
        if begins:
            self._begin(loop)
        await line.kept

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            threading.Thread(target=self._write, args=(loop,), name="usage log", daemon=True).start()
        except RuntimeError as error:  # the system has no more of them
            while batch := self._taken():
                _settle(batch, error)

    def _write(self, loop: asyncio.AbstractEventLoop) -> None:
        while batch := self._taken():
            failure = self._failure([line.data for line in batch])
            with suppress(RuntimeError):  # the loop is gone, and whoever waited with it
                loop.call_soon_threadsafe(_settle, batch, failure)

    def _taken(self) -> list[_Line]:
        """Take all that waits; with nothing, whoever comes next must begin anew."""
        with self._lock:
            batch, self._waiting = self._waiting, []
            self._writing = bool(batch)
        return batch

    def _failure(self, lines: Sequence[bytes]) -> Exception | None:
        try:
            _append(self._path, b"".join(lines), sync=self._sync)
        except Exception as error:  # noqa: BLE001 - raised again where it is waited for
            return error
        return None


def _settle(batch: Sequence[_Line], failure: Exception | None) -> None:
    for line in batch:
        if line.kept.done():  # nobody waits for it any longer
            continue
        if failure is None:
            line.kept.set_result(None)
        else:
            line.kept.set_exception(failure)


def _append(path: Path, data: bytes, *, sync: bool) -> None:
    """Write *data* to the end of *path* in one step, on a line of its own even after one that was torn.

    The lock is for that look at the last line: in the middle of another's long write it would seem to be torn.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        size = os.fstat(descriptor).st_size
        torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        whole = b"\n" + data if torn else data
        if os.write(descriptor, whole) < len(whole):
            raise OSError(errno.ENOSPC, "only a part was taken")
        if sync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
