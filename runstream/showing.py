"""`runstream events` and `runstream log`: what is stored of one run, and what is added to it."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from projections.wire_feed import numbered
from runstream.host import Host
from runstream.output import Output
from runstream.tables import EVENT_HEADER, LOG_HEADER, event_line, log_line, log_object


async def show_events(host: Host, output: Output, run_id: str, *, as_json: bool, follow: bool) -> None:
    """Write the feed of a run, and with *follow* what comes until its end.

    Raises:
        Refused: there is no such run.
    """
    await host.state(run_id)
    if not as_json:
        await output.line(EVENT_HEADER)
    async with aclosing(_events(host, run_id, follow=follow)) as events:
        async for data in events:
            await (output.json(data) if as_json else output.line(event_line(msgspec.json.decode(data))))


async def show_log(host: Host, output: Output, run_id: str, *, as_json: bool, follow: bool) -> None:
    """Write the log of a run, and with *follow* what comes until its end.

    Raises:
        Refused: there is no such run.
    """
    await host.state(run_id)
    if not as_json:
        await output.line(LOG_HEADER)
    version = await _log(host, run_id, output, 0, as_json=as_json)
    if not follow:
        return
    # Whatever a log says shows in the feed, or is followed by something that does.
    async with aclosing(host.follow(run_id)) as batches:
        async for _ in batches:
            version = await _log(host, run_id, output, version, as_json=as_json)
    await _log(host, run_id, output, version, as_json=as_json)


async def _events(host: Host, run_id: str, *, follow: bool) -> AsyncGenerator[bytes]:
    if not follow:
        for data in await host.events(run_id):
            yield data
        return
    async with aclosing(host.follow(run_id)) as batches:
        async for batch in batches:
            for item in batch:
                yield numbered(item.number, item.data)


async def _log(host: Host, run_id: str, output: Output, after: int, *, as_json: bool) -> int:
    """Write what the log has after version *after*, and return the last version."""
    for entry, event in await host.log(run_id, after):
        await (output.json(log_object(entry, event)) if as_json else output.line(log_line(entry, event)))
        after = entry.version
    return after
