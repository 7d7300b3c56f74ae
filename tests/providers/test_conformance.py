"""Every adapter does what the port promises, on a vendor that speaks its real format over real HTTP."""

import os

import pytest

from providers import kit
from tests.providers.dialects import DIALECTS, named
from tests.providers.fake_vendor import Dialect, FakeStage, Way

pytestmark = pytest.mark.anyio

WITHOUT = {"anthropic": {"counts_reasoning"}, "xai-chat": set[str]()}
SLOW = pytest.mark.skipif(not os.environ.get("SLOW_TESTS"), reason="every case at every cut: set SLOW_TESTS=1")
CUT = {"streams_text", "calls_tools", "calls_tools_at_once", "keeps_thoughts_apart"}
WAYS = {
    "byte-by-byte": Way(every=1),
    "carriage-returns": Way(every=1, line_end=b"\r"),
    "both-line-ends": Way(every=1, line_end=b"\r\n"),
    "keep-alives": Way(every=7, keep_alive=b": still here"),
    "documents": Way(whole=True),
}
APPLIES = {
    "documents": kit.CASES.keys()
    - {"keeps_thoughts_apart", "streams_text", "calls_tools_at_once", "refuses_a_cut_call"}
}


@pytest.mark.parametrize("dialect", DIALECTS, ids=named)
@pytest.mark.parametrize("case", kit.CASES)
async def test_an_adapter_conforms(case: str, dialect: Dialect) -> None:
    await kit.run(case, kit.CASES[case], FakeStage(dialect))


@pytest.mark.parametrize("dialect", DIALECTS[:4], ids=named)
@pytest.mark.parametrize("way", WAYS)
async def test_it_does_so_however_the_bytes_come(way: str, dialect: Dialect) -> None:
    for case in sorted(CUT & APPLIES.get(way, CUT)):
        await kit.run(case, kit.CASES[case], FakeStage(dialect, WAYS[way]))


@SLOW
@pytest.mark.exhaustive
@pytest.mark.parametrize("dialect", DIALECTS, ids=named)
@pytest.mark.parametrize("way", WAYS)
async def test_every_case_passes_however_the_bytes_come(way: str, dialect: Dialect) -> None:
    for name in sorted(APPLIES.get(way, kit.CASES.keys())):
        await kit.run(name, kit.CASES[name], FakeStage(dialect, WAYS[way]))
