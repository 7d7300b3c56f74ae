"""Frames, heartbeats and the loop that sends them."""

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api import sse
from eventstore.store import Item
from projections import wire_feed

pytestmark = pytest.mark.anyio
RUN_ID = "0b6c2a52-6d0e-4f7e-9a41-5f2f5f3b7c10"
STARTED = wire_feed.item(RUN_ID, "run.started", {"provider": "mock", "model": "demo"}, 0)
ENDED = wire_feed.item(RUN_ID, "run.cancelled", {"error": {"code": "X", "message": "", "retryable": False}}, 0)


def delta(text: str) -> bytes:
    return wire_feed.item(RUN_ID, "text.delta", {"text": text}, 0)


def numbered(*data: bytes) -> list[Item]:
    return [Item(number, each) for number, each in enumerate(data, 1)]


class Sent:
    """Remembers what was sent."""

    def __init__(self) -> None:
        self.messages: list[Any] = []

    async def __call__(self, message: Any) -> None:
        self.messages.append(message)

    @property
    def bodies(self) -> list[bytes]:
        return [message["body"] for message in self.messages if message["type"] == "http.response.body"]


async def given_batches(*batches: Sequence[Item]) -> AsyncIterator[Sequence[Item]]:
    for batch in batches:
        yield batch


async def followed(*batches: Sequence[Item], heartbeat_s: float = 15) -> tuple[Sent, sse.Stream]:
    sent = Sent()
    stream = sse.Stream(sent, (), heartbeat_s)
    await stream.follow(given_batches(*batches))
    return sent, stream


@given(st.text())
def test_one_item_is_one_frame_whatever_text_it_holds(text: str) -> None:
    text = text.encode("utf-8", "replace").decode() + "\r\n\u2028\u2029\u0085\x00\ufeffevent: run.completed\n\n"
    frame = sse.frames(numbered(delta(text)))
    # A client that takes anything Unicode calls a line end must not see another line either.
    assert len(frame.decode().splitlines()) == 4
    id_line, event_line, data_line, blank = frame.decode().split("\n", 3)
    assert (id_line, event_line, blank) == ("id: 1", "event: text.delta", "\n")
    assert json.loads(data_line.removeprefix("data: "))["text"] == text


async def test_ready_frames_leave_in_one_send_and_the_last_one_ends_the_body() -> None:
    items = numbered(STARTED, delta("a"), delta("b"), ENDED)
    sent, stream = await followed(items[:3], items[3:])
    assert [message["type"] for message in sent.messages] == ["http.response.start"] + ["http.response.body"] * 2
    assert [body.count(b"\n\n") for body in sent.bodies] == [3, 1]
    assert [message["more_body"] for message in sent.messages[1:]] == [True, False]
    assert stream.ended


async def test_nothing_is_sent_before_the_first_item() -> None:
    sent, _ = await followed([], [], numbered(STARTED, ENDED), heartbeat_s=0)
    assert [message["type"] for message in sent.messages] == ["http.response.start", "http.response.body"]


async def test_nothing_follows_the_terminal_item() -> None:
    sent, _ = await followed(numbered(STARTED, ENDED), [], numbered(delta("late")), heartbeat_s=0)
    assert len(sent.bodies) == 1


async def test_a_tick_is_a_heartbeat_only_after_silence() -> None:
    items = numbered(STARTED, ENDED)
    sent, _ = await followed(items[:1], [], items[1:], heartbeat_s=15)
    assert sse.HEARTBEAT not in sent.bodies
    sent, _ = await followed(items[:1], [], items[1:], heartbeat_s=1)
    assert sent.bodies[1] == b": heartbeat\n\n"


async def test_a_feed_without_an_end_tears_the_stream() -> None:
    with pytest.raises(sse.Torn):
        await followed(numbered(STARTED))
