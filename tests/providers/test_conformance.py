"""Every adapter does what the port promises, on a vendor that speaks its real format over real HTTP."""

import os

import pytest

from providers import kit
from tests.providers.dialects import DIALECTS, named
from tests.providers.fake_vendor import Dialect, FakeStage, Way

pytestmark = pytest.mark.anyio

SLOW = pytest.mark.skipif(not os.environ.get("SLOW_TESTS"), reason="every case at every cut: set SLOW_TESTS=1")
WAYS = {
    "byte by byte": Way(every=1),
    "with carriage returns": Way(every=1, line_end=b"\r"),
    "with both line ends": Way(every=1, line_end=b"\r\n"),
    "with keep-alives": Way(every=7, keep_alive=b": still here"),
    "as documents": Way(whole=True),
}
ONLY_STREAMED = {"streams_text", "keeps_thoughts_apart", "calls_tools_at_once", "refuses_a_cut_call"}
"""What asks for something to be heard before the end, or cuts what a document cannot be cut in."""
QUICK = {
    "with both line ends": ("calls_tools",),
    "with keep-alives": ("calls_tools", "streams_text", "calls_tools_at_once"),
    "as documents": ("calls_tools", "counts_tokens", "tells_the_output_limit", "tells_a_refusal"),
}


def cases(way: str) -> list[str]:
    return [name for name in kit.CASES if not (WAYS[way].whole and name in ONLY_STREAMED)]


@pytest.mark.parametrize("dialect", DIALECTS, ids=named)
@pytest.mark.parametrize("case", kit.CASES)
async def test_an_adapter_conforms(case: str, dialect: Dialect) -> None:
    await kit.run(case, kit.CASES[case], FakeStage(dialect))


@pytest.mark.parametrize("dialect", DIALECTS[:4], ids=named)
@pytest.mark.parametrize("way", QUICK)
async def test_it_does_so_however_the_bytes_come(way: str, dialect: Dialect) -> None:
    for name in QUICK[way]:
        await kit.run(name, kit.CASES[name], FakeStage(dialect, WAYS[way]))


@SLOW
@pytest.mark.rules
@pytest.mark.parametrize("dialect", DIALECTS, ids=named)
@pytest.mark.parametrize("way", WAYS)
async def test_every_case_passes_however_the_bytes_come(way: str, dialect: Dialect) -> None:
    for name in cases(way):
        await kit.run(name, kit.CASES[name], FakeStage(dialect, WAYS[way]))
