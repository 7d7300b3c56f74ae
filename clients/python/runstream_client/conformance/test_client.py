"""The client does with each vector what the vector says, blocking and awaiting."""

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import pytest
from anyio.from_thread import start_blocking_portal

from runstream_client import AsyncClient, Client, ClientError, cited
from runstream_client.conformance.asking import Outcome, asked, asked_async, wrong_with
from runstream_client.conformance.cases import Case, all_cases, suite
from runstream_client.conformance.peer import DEADLINE_S, Peer, peer

TOKEN = "a-token-of-the-vectors"
CASES = all_cases()
Ask: TypeAlias = Callable[[Case], Outcome]


@pytest.fixture(scope="module")
def host() -> Iterator[Peer]:
    """The peer of all cases."""
    with peer() as made:
        yield made


@pytest.fixture(scope="module", params=["blocking", "awaiting"])
def ask(request: pytest.FixtureRequest, host: Peer) -> Iterator[Ask]:
    """Either client, as a function."""
    if request.param == "blocking":
        with Client(host.url, token=TOKEN) as client:
            yield lambda case: asked(client, case)
        return
    with start_blocking_portal() as portal:
        awaiting = AsyncClient(host.url, token=TOKEN)
        yield lambda case: portal.call(asked_async, awaiting, case)
        portal.call(awaiting.close)


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_a_client_does_what_the_vector_says(case: Case, ask: Ask, host: Peer) -> None:
    """Ask, and compare; a client that leaves is seen leaving, and nothing is asked twice or elsewhere."""
    host.answering(case.reply)
    wrong = wrong_with(case, ask(case))
    assert wrong is None, wrong
    assert len(host.asked) == 1
    if case.expect.get("hostSeesDisconnect"):
        assert host.left.wait(DEADLINE_S)


@pytest.mark.parametrize("case", suite("retrieval")["citations"]["cases"], ids=lambda case: case["text"])
def test_a_citation_names_a_source_that_exists(case: dict[str, Any]) -> None:
    """Fill in the id, and compare."""
    (known,) = suite("retrieval")["citations"]["known"]
    text = case["text"].replace("{id}", known).replace("{id minus its last character}", known[:-1])
    sources: list[str] = case.get("known", [known])
    required: bool = case["require"]
    if case["expect"] == "INVALID_CITATION":
        with pytest.raises(ClientError, match="INVALID_CITATION"):
            cited(text, sources, required=required)
    else:
        assert cited(text, sources, required=required) == [known for _ in case["expect"]]
