"""Where the primary is that Sentinel watches: asked for anew whenever a connection is made.

Sentinel ends the clients' connections to a primary that it demotes, so whoever is connected comes back here by itself.
"""

from collections.abc import Sequence

import anyio
from msgspec.structs import replace
from typing_extensions import override

from eventstore.endpoint import TROUBLE, Endpoint, nobody
from eventstore.link import ConnectionLost
from eventstore.socket_link import Limits, bare_call

_ASKED: Limits = Limits(connect_s=1.0, patience_s=1.0, silence_s=1.0)
_EACH_S = 1.5
"""How long one sentinel, or the primary it named, may take to answer."""


class Sentinels:
    """A `Whereabouts`: asks *sentinels* in turn for the primary called *name*; *account* is ours on that primary."""

    def __init__(self, name: str, sentinels: Sequence[Endpoint], account: Endpoint) -> None:
        self._name = name
        self._sentinels = list(sentinels)
        self._account = account

    @override
    def __repr__(self) -> str:
        """Name the primary as the settings do."""
        return f"the primary {self._name}"

    async def __call__(self) -> Endpoint:
        """Find a server that a sentinel names and that says itself that it is a primary.

        Raises:
            ConnectionLost: there is none now.
            Unfit: nobody names one, and who was asked refuses our account or shows a certificate that is not trusted.
        """
        why: list[tuple[Endpoint, Exception]] = []
        for sentinel in list(self._sentinels):
            try:
                with anyio.fail_after(_EACH_S):
                    primary = await self._named(sentinel)
                with anyio.fail_after(_EACH_S):
                    await _insist(primary)
            except TROUBLE as error:
                why.append((sentinel, error))
                self._sentinels.remove(sentinel)
                self._sentinels.append(sentinel)  # whoever knew nothing is asked last the next time
            else:
                return primary
        raise nobody(f"nobody names a primary called {self._name}", why)

    async def _named(self, sentinel: Endpoint) -> Endpoint:
        """Ask *sentinel*."""
        async with bare_call(sentinel, _ASKED) as call:
            answer = await call("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._name)
        if answer is None:
            raise ConnectionLost(f"it watches nothing called {self._name}")
        host, port = answer
        return replace(self._account, host=host.decode(), port=int(port))


async def _insist(primary: Endpoint) -> None:
    """Refuse a server that is not a primary yet, or no more."""
    async with bare_call(primary, _ASKED) as call:
        role = (await call("ROLE"))[0].decode()
    if role != "master":
        raise ConnectionLost(f"{primary!r}, which it named, is a {role}")
