"""Users notice what no host may send, though their client bears it."""

from types import SimpleNamespace
from typing import Any

import pytest
from runstream_client import ClientError
from runstream_client.conformance.cases import compact, frames
from runstream_client.conformance.peer import Peer, Reply, peer

from tests.system.users import User, asking_for

pytestmark = pytest.mark.anyio

PLAIN = asking_for("echo")
STAMP = {"runId": "00000000-0000-4000-8000-000000000000", "timestamp": "2026-02-03T04:05:06.007Z"}
STARTED = STAMP | {"type": "run.started", "sequence": 1, "provider": "scripted", "model": "echo"}
ERROR = {"code": "OVER", "message": "and out", "retryable": False}
FAILED = STAMP | {"type": "run.failed", "sequence": 2, "error": ERROR}


def said(*pieces: bytes, status: int = 200, **more: str) -> Reply:
    """An answer with the header lines that hosts send, and *more*."""
    stream = [("Content-Type", "text/event-stream; charset=utf-8"), ("X-Accel-Buffering", "no")]
    plain = [("Content-Type", "application/json; charset=utf-8")]
    lines = [("AgenticDriver-Version", "1.0"), ("Cache-Control", "no-store"), ("X-Content-Type-Options", "nosniff")]
    return Reply(pieces, status, [*lines, *(stream if status == 200 else plain), *more.items()])


def framed(*told: Any) -> bytes:
    """Frames as hosts write them."""
    return b"".join(
        b"id: %d\nevent: %b\ndata: %b\n\n" % (event["sequence"], event["type"].encode(), compact(event))
        for event in told
    )


@pytest.mark.parametrize(
    ("reply", "fault"),
    [
        (said(framed(STARTED, FAILED)), ""),
        (said(frames([STARTED, FAILED])), "neither a heartbeat nor id"),
        (said(framed(STARTED, FAILED), framed(STARTED)), "something after the terminal event"),
        (said(framed(STARTED, FAILED), Location="/"), "Location"),
        (said(compact({"error": ERROR}), status=400), ""),
        (said(compact({"error": ERROR | {"stack": "secrets"}}), status=400), "unknown member stack"),
        (said(compact({"error": ERROR}), status=400, Location="/"), "Location"),
    ],
)
async def test_what_no_host_may_send_is_noticed_though_the_client_bears_it(reply: Reply, fault: str) -> None:
    codes: list[str] = []

    async def use(host: Peer) -> None:
        place: Any = SimpleNamespace(target=SimpleNamespace(port=int(host.url.rpartition(":")[2])))
        async with User(place) as user:
            try:
                await user.stream(PLAIN).result()
            except ClientError as error:
                codes.append(error.code)

    with peer() as host:
        host.answering(reply)
        if fault:
            with pytest.raises(AssertionError, match=fault):
                await use(host)
        else:
            await use(host)
    assert codes == ["OVER"]
