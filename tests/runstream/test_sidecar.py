"""The local ways into the Host protocol: what was answered arrives, and no peer outlives its connection."""

import asyncio
import os
import select
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from runstream import sidecar
from tests.actors.support import until

pytestmark = pytest.mark.anyio

ANSWER = b"x" * 100_000
"""More than a pipe holds, by less than a writer buffers."""


async def test_an_answer_counts_as_sent_only_once_the_pipe_has_all_of_it() -> None:
    reading, writing = os.pipe()
    loop, sent = asyncio.get_running_loop(), anyio.Event()
    with os.fdopen(reading, "rb") as peer, os.fdopen(writing, "wb") as pipe:
        transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, pipe)
        send = sidecar._sender(asyncio.StreamWriter(transport, protocol, None, loop))

        async def answer() -> None:
            await send(ANSWER)
            sent.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(answer)
            await anyio.wait_all_tasks_blocked()
            assert not sent.is_set()
            taken = await anyio.to_thread.run_sync(peer.read, len(ANSWER))
            await sent.wait()
            assert taken == ANSWER
        transport.close()
        await anyio.wait_all_tasks_blocked()


async def test_a_peer_that_was_given_up_is_cut_off(tmp_path: Path) -> None:
    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(ANSWER * 100)  # and the peer takes none of it

    closing = anyio.Event()
    async with listening(tmp_path, talk, closing) as peer:
        await until(lambda: is_cut_off(peer))
        closing.set()


async def test_a_peer_that_is_not_done_when_the_host_must_end_is_cut_off(tmp_path: Path) -> None:
    talking, left = anyio.Event(), anyio.Event()

    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(ANSWER * 100)
        talking.set()
        try:
            await anyio.sleep_forever()
        finally:
            left.set()

    closing = anyio.Event()
    async with listening(tmp_path, talk, closing) as peer:
        await talking.wait()
        closing.set()
        await until(lambda: is_cut_off(peer))
    assert left.is_set()


@asynccontextmanager
async def listening(folder: Path, talk: sidecar.Talk, closing: anyio.Event) -> AsyncIterator[socket.socket]:
    """A peer that takes nothing, connected to a host that ends at once when it closes."""
    path, ready = folder / "h.sock", anyio.Event()
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as peer:
        listener.bind(str(path))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(sidecar._listened, listener, 0, ready.set, talk, closing)
            await ready.wait()
            peer.connect(str(path))
            yield peer


def is_cut_off(peer: socket.socket) -> bool:
    """Whether the other side has closed; nothing is read."""
    poll = select.poll()
    poll.register(peer, 0)
    return any(what & select.POLLHUP for _, what in poll.poll(0))
