"""Clients: a partition that does not answer costs the clients of no other their lease."""

from collections import Counter
from typing import Any

import anyio
import pytest

from actors.clients import Clients
from tests.actors.support import until

pytestmark = pytest.mark.anyio

GRACE_MS = 1_000


class Pausing:
    """A store whose time stands at the test's will, and which does not answer for *hung*."""

    def __init__(self, hung: str) -> None:
        self.time_ms = 1_000_000
        self.asked = Counter[str]()
        self.due: dict[str, int] = {}
        self._hung = hung

    def now_ms(self) -> int:
        return self.time_ms

    async def settle(self, actor: str, _reason: str, at_ms: int) -> None:
        self.asked[actor] += 1
        if actor == self._hung and self.asked[actor] > 1:
            await anyio.sleep_forever()
        self.due[actor] = at_ms


async def test_a_client_whose_partition_pauses_costs_no_other_its_lease() -> None:
    store: Any = Pausing("hung")
    async with anyio.create_task_group() as tasks:
        clients = Clients(store, tasks.start_soon)
        with clients.attached("hung", GRACE_MS), clients.attached("other", GRACE_MS):
            await until(lambda: len(store.due) == 2)
            for _ in range(3):
                store.time_ms += GRACE_MS // 2
                with anyio.fail_after(1):
                    await clients.keep()
                await until(lambda: store.due["other"] == store.time_ms + GRACE_MS)
            assert store.asked["hung"] == 2  # once more, and not again while that is not answered
        tasks.cancel_scope.cancel()
