"""Ids that stand for a subject and its key: the same for ever, and never for two."""

import re
import uuid

from hypothesis import given
from hypothesis import strategies as st

from actors.ids import derived, host_key, job_of_key, run_of_host, run_of_key, sibling

KEY = bytes(range(32))


def test_an_id_derived_once_is_the_same_for_ever() -> None:
    assert run_of_key(KEY, "ann", "k1") == "b690ffc5-ebfa-889e-b642-be62a62047db"
    assert run_of_host(KEY, "ann", "run-1") == "8f602a66-ac6f-8025-9908-ba701061cd37"
    assert host_key(KEY, "ann", "create_run", "k1") == "f3592b00-59dd-8b07-acdd-f9ba7e5a4354"


@given(st.text(), st.text())
def test_a_derived_id_is_a_lower_case_uuid_of_version_eight(subject: str, key: str) -> None:
    made = run_of_key(KEY, subject, key)
    assert re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", made)
    assert str(uuid.UUID(made)) == made


@given(st.lists(st.text(), max_size=4), st.lists(st.text(), max_size=4))
def test_different_parts_have_different_ids_wherever_they_are_cut(parts: list[str], others: list[str]) -> None:
    assert (derived(KEY, parts) == derived(KEY, others)) == (parts == others)


def test_parts_do_not_run_into_each_other() -> None:
    cut = [["ab", "c"], ["a", "bc"], ["abc"], ["ab", "c", ""], ["ab,c"], ['ab","c']]
    assert len({derived(KEY, parts) for parts in cut}) == len(cut)


def test_another_deployment_gives_another_id() -> None:
    assert run_of_key(KEY, "ann", "k1") != run_of_key(KEY[::-1], "ann", "k1")


def test_a_job_and_a_run_of_one_key_are_two() -> None:
    assert job_of_key(KEY, "ann", "k1") == "7bc171ed-9e9f-8a09-91b3-29bc335d5327"
    assert job_of_key(KEY, "ann", "k1") != run_of_key(KEY, "ann", "k1")


def test_a_sibling_lies_in_the_partition_of_its_run_and_is_otherwise_fresh() -> None:
    run_id, fresh_id = run_of_key(KEY, "ann", "k1"), str(uuid.uuid4())
    made = sibling(run_id, fresh_id)
    assert (made[:8], made[8:]) == (run_id[:8], fresh_id[8:])
    assert str(uuid.UUID(made)) == made
