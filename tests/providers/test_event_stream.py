"""Server-sent events are read alike however their bytes are cut, and within bounds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.errors import Failed
from providers.event_stream import EVENT_BYTES_MAX, STREAM_BYTES_MAX, EventStream

STREAM = (
    b'\xef\xbb\xbf: comment\nevent: name\ndata: {"a":1}\n\n'
    b"data:one\rdata: two\r\rid: 7\r\nretry: 5\r\n\r\n"
    + "data: Zoë \U0001f600\r\n\r\n".encode()
    + b"data\n\ndata:\n\ndata:  spaced\n\n\n\ndata: last\n\ndata: never ended\n"
)
EVENTS = [b'{"a":1}', b"one\ntwo", "Zoë \U0001f600".encode(), b"", b" spaced", b"last"]


def read(*chunks: bytes) -> list[bytes]:
    stream = EventStream()
    return [data for chunk in chunks for data in stream.fed(chunk)]


def code(*chunks: bytes) -> str:
    with pytest.raises(Failed) as caught:
        read(*chunks)
    return caught.value.problem.code


def test_a_stream_holds_its_events() -> None:
    assert read(STREAM) == EVENTS


def test_every_single_cut_gives_the_same_events() -> None:
    for cut in range(len(STREAM)):
        assert read(STREAM[:cut], STREAM[cut:]) == EVENTS, cut


def test_single_bytes_give_the_same_events() -> None:
    assert read(*(bytes([byte]) for byte in STREAM)) == EVENTS


@given(st.lists(st.binary(max_size=12)), st.data())
def test_no_way_to_cut_makes_a_difference(lines: list[bytes], data: st.DataObject) -> None:
    ends = st.sampled_from([b"\n", b"\r", b"\r\n"])
    told = b"".join(b"data: " + line.hex().encode() + data.draw(ends) + data.draw(ends) for line in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(told)), max_size=8)))
    chunks = [told[start:end] for start, end in zip([0, *cuts], [*cuts, len(told)], strict=True)]
    assert read(*chunks) == read(told)


def test_a_bare_carriage_return_ends_its_line_at_once() -> None:
    assert read(b"data: a\r\r") == [b"a"]
    assert read(b"data: a\r", b"\n\r", b"\ndata: b\n\n") == [b"a", b"b"]


def test_an_unended_event_is_never_told() -> None:
    assert read(b"data: a\n\ndata: b\n") == [b"a"]
    assert read(b"") == []


@pytest.mark.parametrize("wrong", [b"data: \xff\n\n", b": \xc3\n\n", b"data: \xed\xa0\x80\n\n"])
def test_what_is_no_utf_8_is_refused(wrong: bytes) -> None:
    assert code(wrong) == "INVALID_STREAM"


def test_an_event_has_a_bound_whether_or_not_it_ends() -> None:
    most = EVENT_BYTES_MAX - len(b"data: ")
    assert read(b"data: " + b"x" * most + b"\n\n") == [b"x" * most]
    assert code(b"data: " + b"x" * (most + 1) + b"\n\n") == "RESPONSE_TOO_LARGE"
    assert code(*[b"x" * 100_000] * 21) == "RESPONSE_TOO_LARGE"
    assert code(*[b": comment of twenty bytes\n" * 1_000] * 100) == "RESPONSE_TOO_LARGE"


def test_keep_alives_never_add_up() -> None:
    assert read(*[b": comment of twenty bytes\n\n" * 1_000] * 100, b"data: a\n\n") == [b"a"]


def test_the_bounds_are_those_of_the_protocol() -> None:
    assert (EVENT_BYTES_MAX, STREAM_BYTES_MAX) == (2_000_000, 10_000_000)


def test_all_events_together_have_a_bound() -> None:
    event = b"data: " + b"x" * (STREAM_BYTES_MAX // 8) + b"\n\n"
    assert len(read(*[event] * 8)) == 8
    assert code(*[event] * 9) == "RESPONSE_TOO_LARGE"
