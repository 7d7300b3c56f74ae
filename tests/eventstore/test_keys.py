"""Where keys lie, and that every key is known."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventstore import keys

ACTOR = "0000002a-0000-8000-8000-000000000001"


@pytest.mark.parametrize("partitions", [1, 2, 64, 100])
def test_partitions_lie_evenly_over_the_slots_of_a_cluster(partitions: int) -> None:
    slots = [keys.slot(tag[1:-1]) for tag in keys.tags(partitions)]
    assert all(n * 16_384 // partitions <= slot < (n + 1) * 16_384 // partitions for n, slot in enumerate(slots))
    assert all(low < high for low, high in pairwise(slots))


def test_tags_never_change_because_data_lies_under_them() -> None:
    assert keys.tags(64)[:4] == ("{0.178}", "{1.2}", "{2.303}", "{3.63}")


def test_the_slot_of_a_tag_is_the_one_a_cluster_computes() -> None:
    assert keys.slot("123456789") == 0x31C3


def test_the_first_32_bits_of_an_id_choose_its_partition() -> None:
    assert keys.partition(ACTOR, 64) == 42
    assert keys.partition(ACTOR[:8] + "-ffff", 64) == 42
    assert keys.tag_of(ACTOR, 64) == keys.tags(64)[42]


@given(st.text(min_size=1))
def test_every_key_made_here_is_known_by_its_kind(name: str) -> None:
    made: dict[str, keys.Kind] = {
        keys.heads("{1.2}", name): "heads",
        keys.log("{1.2}", name): "log",
        keys.feed("{0}", name): "feed",
        keys.snapshot("{0}", name): "snapshot",
        keys.listed("{0}", name): "listed",
        keys.due("{0}"): "due",
        keys.outbox("{0}"): "outbox",
        keys.barrier("{0}"): "barrier",
        keys.meta("{g}"): "meta",
        keys.ledger("held", name): "held",
        keys.ledger("gone", name): "gone",
        keys.ledger("queue", name): "queue",
        keys.ledger("qturn", name): "qturn",
    }
    assert {key: keys.kind_of(key) for key in made} == made


def test_what_the_ledger_publishes_and_what_it_keeps_lie_in_one_slot() -> None:
    assert keys.room_channel().startswith(keys.LEDGER_TAG)
    assert keys.kind_of(keys.room_channel()) is None


@pytest.mark.parametrize("key", ["", "due", "{0}due", "{0}:h", "{0}:due:x", "{x}:due", "{0}:z:", "{0}:unknown:x"])
def test_a_key_not_made_here_has_no_kind(key: str) -> None:
    assert keys.kind_of(key) is None


def test_every_kind_says_how_long_it_lives() -> None:
    assert set(keys.LIFETIMES) == {*keys._PER_NAME.values(), *keys._SINGLE.values()}
