"""The usage log: whole lines in a private file, whoever else writes and whatever the disk says."""

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from runstream import usage_log
from runstream.usage_log import JsonLines

pytestmark = pytest.mark.anyio


class Disk:
    """Stands before the writing of lines: counts the writes, and holds or refuses them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.writes: list[bytes] = []
        self.failure: Exception | None = None
        self.free = threading.Event()
        self.free.set()
        self._append = usage_log._append
        monkeypatch.setattr(usage_log, "_append", self.append)

    def append(self, path: Path, data: bytes, *, sync: bool) -> None:
        self.writes.append(data)
        assert self.free.wait(10)
        if self.failure is not None:
            raise self.failure
        self._append(path, data, sync=sync)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def lines(path: Path) -> list[Any]:
    return [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]


async def until(holds: Callable[[], bool]) -> None:
    with anyio.fail_after(10):
        while not holds():  # noqa: ASYNC110 - a thread cannot set an event of the loop
            await anyio.sleep(0.001)


async def test_each_record_is_a_line_in_a_file_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "state" / "usage.jsonl"
    sink = JsonLines(path)
    await sink({"eventId": "r1"})
    await sink({"eventId": "r2", "metadata": {"text": "two\nlines"}})
    assert lines(path) == [{"eventId": "r1"}, {"eventId": "r2", "metadata": {"text": "two\nlines"}}]
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


async def test_a_file_that_was_moved_away_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "usage.jsonl"
    sink = JsonLines(path)
    await sink({"eventId": "r1"})
    path.rename(tmp_path / "old.jsonl")
    await sink({"eventId": "r2"})
    assert lines(path) == [{"eventId": "r2"}]


async def test_a_line_that_was_torn_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "usage.jsonl"
    path.write_bytes(b'{"eventId":"r1"}\n{"eve')
    await JsonLines(path)({"eventId": "r2"})
    assert path.read_bytes() == b'{"eventId":"r1"}\n{"eve\n{"eventId":"r2"}\n'


async def test_several_hosts_write_whole_lines_into_one_file(tmp_path: Path) -> None:
    path = tmp_path / "usage.jsonl"
    sinks = [JsonLines(path) for _ in range(4)]
    async with anyio.create_task_group() as tasks:
        for number in range(400):
            tasks.start_soon(sinks[number % 4], {"eventId": number, "pad": "x" * number * 10})
    assert sorted(line["eventId"] for line in lines(path)) == list(range(400))


async def test_what_waits_goes_out_in_one_write(tmp_path: Path, disk: Disk) -> None:
    disk.free.clear()
    sink = JsonLines(tmp_path / "usage.jsonl")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sink, {"eventId": 0})
        await until(lambda: len(disk.writes) == 1)
        for number in range(1, 9):
            tasks.start_soon(sink, {"eventId": number})
        await anyio.wait_all_tasks_blocked()
        disk.free.set()
    assert [data.count(b"\n") for data in disk.writes] == [1, 8]
    assert [line["eventId"] for line in lines(tmp_path / "usage.jsonl")] == list(range(9))


@pytest.mark.parametrize(("sync", "times"), [(False, 0), (True, 1)])
async def test_the_disk_is_waited_for_only_where_that_was_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, sync: bool, times: int
) -> None:
    synced = list[int]()
    monkeypatch.setattr(os, "fsync", synced.append)
    await JsonLines(tmp_path / "usage.jsonl", sync=sync)({"eventId": "r1"})
    assert len(synced) == times


async def test_a_disk_that_refuses_is_told_to_all_who_wait_and_asked_again(tmp_path: Path, disk: Disk) -> None:
    disk.failure = OSError(28, "full")
    sink = JsonLines(tmp_path / "usage.jsonl")
    answers = await asyncio.gather(*(sink({"eventId": one}) for one in range(3)), return_exceptions=True)
    assert [type(answer) for answer in answers] == [OSError] * 3
    disk.failure = None
    await sink({"eventId": 3})
    assert lines(tmp_path / "usage.jsonl") == [{"eventId": 3}]


async def test_a_part_of_a_write_is_no_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = os.write
    monkeypatch.setattr(os, "write", lambda file, data: written(file, data[:5]))
    sink = JsonLines(tmp_path / "usage.jsonl")
    with pytest.raises(OSError, match="part"):
        await sink({"eventId": "r1"})
    monkeypatch.undo()
    await sink({"eventId": "r1"})
    assert (tmp_path / "usage.jsonl").read_bytes().splitlines()[-1] == b'{"eventId":"r1"}'


async def test_who_stops_waiting_for_a_stalled_disk_leaves_the_others_their_place(tmp_path: Path, disk: Disk) -> None:
    disk.free.clear()
    sink = JsonLines(tmp_path / "usage.jsonl")
    async with anyio.create_task_group() as others:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(sink, {"eventId": 0})
            await until(lambda: len(disk.writes) == 1)
            tasks.cancel_scope.cancel()
        others.start_soon(sink, {"eventId": 1})
        await anyio.wait_all_tasks_blocked()
        disk.free.set()
    assert [line["eventId"] for line in lines(tmp_path / "usage.jsonl")] == [0, 1]


async def test_no_more_wait_for_the_disk_than_may(tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_log, "LINES_MAX", 1)
    disk.free.clear()
    sink = JsonLines(tmp_path / "usage.jsonl")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sink, {"eventId": 0})
        await until(lambda: len(disk.writes) == 1)
        tasks.start_soon(sink, {"eventId": 1})
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(BufferError):
            await sink({"eventId": 2})
        disk.free.set()
    assert [line["eventId"] for line in lines(tmp_path / "usage.jsonl")] == [0, 1]


async def test_a_system_without_threads_is_told_and_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    sink = JsonLines(tmp_path / "usage.jsonl")
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            await sink({"eventId": 0})
    await sink({"eventId": 1})
    assert lines(tmp_path / "usage.jsonl") == [{"eventId": 1}]
