"""The shared vectors of negotiation, over a real socket."""

import pytest

from tests.api.host_cases import CASES, run_host_cases
from tests.api.hosted import TOKENS, hosted

pytestmark = pytest.mark.anyio


async def test_the_host_answers_every_case_of_the_shared_vectors() -> None:
    assert len(CASES) == 50
    async with hosted(jobs=False) as host:
        assert await run_host_cases(host.target, lambda: host.model.calls, TOKENS) == []
