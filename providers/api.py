"""A provider instance behind an HTTP API: any vendor's codec over one HTTP layer (providers §3, §4)."""

import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import TypeAlias

from actors.errors import Failed
from actors.ports import ModelContext, ModelRequest, Probe, ProviderInfo, Turn
from providers import catalog
from providers.codec import Said
from providers.failures import failed, of_status
from providers.http import Http
from providers.http_answer import Answer, TooLarge
from providers.listing import MODELS_MAX
from providers.probe import Malformed
from providers.vendor import Vendor

Key: TypeAlias = Callable[[], Awaitable[str]]
"""Where the credential comes from, asked for each step; empty where there is none."""

_KEY = re.compile(r"[\x21-\x7e]{1,4096}")


class ApiModel:
    """Asks a vendor; *key* is None for a server that wants none."""

    def __init__(self, info: ProviderInfo, vendor: Vendor, http: Http, key: Key | None, *, structured: bool) -> None:
        self.info = info
        self._vendor = vendor
        self._codec = vendor.codec(structured)
        self._http = http
        self._key = key

    async def complete(self, request: ModelRequest, context: ModelContext) -> Turn:
        """Answer one step.

        Raises:
            Failed: with the code of providers §5 for whatever went wrong.
        """
        body = self._codec.body(request)
        headers = {"accept": "text/event-stream", "content-type": "application/json", **await self._auth()}
        async with self._http.posted(self._codec.path(request.model), headers, body, request.retry) as answer:
            if not answer.is_stream:
                return self._codec.whole(await answer.document())
            return await self._streamed(answer, context)

    async def inspect(self) -> Probe | None:
        """List the models that the credential may use."""
        try:
            headers = {"accept": "application/json", **await self._auth()}
        except Failed:
            return Probe("AUTH_REQUIRED")
        return await self._listed(headers)

    async def _auth(self) -> Mapping[str, str]:
        if self._key is None:
            return {}
        key = await self._key()
        if not _KEY.fullmatch(key):
            raise failed("AUTH_REQUIRED")
        return self._vendor.auth(key)

    async def _streamed(self, answer: Answer, context: ModelContext) -> Turn:
        reader = self._codec.reader()
        async with aclosing(answer.events()) as events:
            async for data in events:
                said = reader.read(data)
                _tell(said, context)
                if said.ended:
                    break
        turn = reader.turn()
        await answer.linger()
        return turn

    async def _listed(self, headers: Mapping[str, str]) -> Probe:
        """Read page after page, until the last one or a bound (providers §2)."""
        models: dict[str, None] = {}
        asked: list[str] = []
        room, query = catalog.BYTES_MAX, self._vendor.listing.first
        while len(asked) < catalog.PAGES_MAX and len(models) < MODELS_MAX:
            if query in asked:
                raise Malformed("a page that leads to itself")
            asked.append(query)
            try:
                status, body = await self._http.got(f"models?{query}" if query else "models", headers, room)
            except TooLarge:
                break
            if of_status(status) is not None:
                return Probe(catalog.STATUSES.get(status, "DISCOVERY_FAILED"))
            room -= len(body)
            page = catalog.page(self._vendor.listing, body)
            models |= dict.fromkeys(page.models)
            if page.following is None:
                return Probe("CATALOG_AVAILABLE", tuple(models), complete=True)
            query = page.following
        if not models:
            raise Malformed("no page within the bound")
        return Probe("CATALOG_AVAILABLE", tuple(models))


def _tell(said: Said, context: ModelContext) -> None:
    if said.text:
        context.emit_text(said.text)
    if said.progress:
        context.report_progress()
