"""How commands follow a run on a host elsewhere: with `runstream_client`, as any program would."""

from collections.abc import AsyncGenerator, Mapping
from typing import Any, NamedTuple, cast

from runstream_client import AsyncClient, RunRequest
from runstream_client.strict_json import encoded


class Remote(NamedTuple):
    """A host elsewhere, and what lets us in."""

    url: str
    token: str


async def remote_events(remote: Remote, document: Mapping[str, Any]) -> AsyncGenerator[bytes]:
    """Start a run on *remote* and yield its events as JSON; closing it early cancels the run.

    Raises:
        ClientError: the host said no, or nothing, or what no host may say.
    """
    async with (
        AsyncClient(remote.url, token=remote.token) as client,
        client.stream(cast("RunRequest", document)) as stream,
    ):
        async for event in stream:
            yield encoded(event.raw)
