"""A host that was named keeps the rules that hold for every host; read by the client, which refuses what breaks them."""

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple
from uuid import uuid4

import httpcore
import pytest

from runstream_client import Client, ClientError, Refused, RunCompleted, RunRequest
from runstream_client.conformance.host_cases import HostCase, faults, host_cases, lines_of, names, stream_faults
from runstream_client.conformance.plugin import Target
from runstream_client.wire import header_lines, posted

SECONDS = {"timeout": {"connect": 10.0, "read": 60.0, "write": 10.0, "pool": 10.0}}
BASE = {"AgenticDriver-Version": "1.0", "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


class Answer(NamedTuple):
    """What a host sent."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    @property
    def json(self) -> Any:
        """The body, if it is JSON."""
        with suppress(ValueError):
            return json.loads(self.body)
        return None


@pytest.fixture(scope="module")
def client(target: Target) -> Iterator[Client]:
    """Give a client of the host."""
    with Client(target.url, token=target.token, silence_s=60.0) as made:
        yield made


@pytest.fixture(scope="module")
def run(client: Client, target: Target) -> RunRequest:
    """Give a small run that the host can do."""
    providers = {provider.id: provider for provider in client.providers()}
    chosen = providers[target.provider] if target.provider else next(iter(providers.values()))
    model = target.model or next(iter(chosen.models or ()), "")
    assert model, "name a model: --model"
    return {"provider": chosen.id, "model": model, "input": "Say that you are there."}


def sent(target: Target, case: HostCase) -> Answer:
    """Send a request exactly as it is."""
    host = ("Host", target.url.partition("://")[2].partition("/")[0])
    length = [("Content-Length", str(len(case.body)))] if case.body is not None else []
    lines = [(name.encode(), value.encode()) for name, value in [host, *case.headers, *length]]
    url = target.url.rstrip("/") + case.path
    answer = httpcore.request(case.method, url, headers=lines, content=case.body, extensions=SECONDS)
    return Answer(answer.status, [(name.decode(), value.decode()) for name, value in answer.headers], answer.content)


@pytest.mark.parametrize("name", names())
def test_a_host_answers_as_the_vector_says(name: str, target: Target, run: RunRequest) -> None:
    """Send, and compare; every answer has each line of the base headers once (overview §4)."""
    (case,) = [case for case in host_cases(target.token, run) if case.id == name]
    answer = sent(target, case)
    assert list(faults(case.expect, answer.status, answer.headers, answer.json)) == []
    assert list(faults({"headers": BASE}, answer.status, answer.headers, None)) == []
    assert not lines_of(answer.headers, "Content-Encoding")


def test_a_host_tells_what_it_can_do(client: Client) -> None:
    """Ask for the protocol."""
    assert {"json-results", "event-stream", "optional-events", "provider-discovery"} <= {*client.protocol().features}


def test_a_result_is_the_same_as_the_end_of_a_stream(client: Client, run: RunRequest) -> None:
    """Run both ways."""
    alone, with_stream = client.run(run), client.stream(run).result()
    assert (alone.provider, alone.model) == (with_stream.provider, with_stream.model)
    assert alone.finish_reason == with_stream.finish_reason
    assert alone.run_id != with_stream.run_id


def test_a_stream_is_framed_as_hosts_frame_it(target: Target, run: RunRequest) -> None:
    """Run, and look at the bytes."""
    exchange = posted("v1/runs", run, accept="text/event-stream")
    lines = [(name.decode(), value.decode()) for name, value in header_lines(exchange, target.token)]
    lines = [line for line in lines if line[0] != "Content-Length"]
    answer = sent(target, HostCase("stream", "POST", "/v1/runs", lines, exchange.body, {}))
    events = [json.loads(line[6:]) for line in answer.body.split(b"\n") if line.startswith(b"data: ")]
    assert lines_of(answer.headers, "Content-Type") == ["text/event-stream; charset=utf-8"]
    assert list(stream_faults(answer.body, events)) == []
    assert events[-1]["type"] == "run.completed"


def test_a_stream_that_is_left_does_not_disturb_the_next(client: Client, run: RunRequest) -> None:
    """Leave after the first event, and run again."""
    with client.stream(run) as stream:
        assert next(stream).sequence == 1
    assert client.stream(run).result().text is not None


def test_a_key_is_one_run(client: Client, run: RunRequest) -> None:
    """Run twice under one key, if the host keeps keys."""
    if "idempotency" not in client.protocol().features:
        with pytest.raises(Refused, match="IDEMPOTENCY_UNAVAILABLE"):
            client.run({**run, "idempotencyKey": f"k-{uuid4()}"})
        return
    keyed: RunRequest = {**run, "idempotencyKey": f"k-{uuid4()}"}
    assert client.run(keyed) == client.run(keyed)
    with pytest.raises(Refused, match="IDEMPOTENCY_CONFLICT"):
        client.run({**keyed, "input": "Something else."})


def test_a_stream_is_continued_from_any_event(client: Client, run: RunRequest) -> None:
    """Read a run again from each of its events, if the host has the extension."""
    if "stream-resumption" not in client.protocol().features:
        return
    with client.stream(run) as stream:
        events = list(stream)
    for event in events[:-1]:
        following = list(client.follow(event.run_id, str(event.sequence)))
        assert [one.raw for one in following] == [one.raw for one in events[event.sequence :]]
    assert isinstance(events[-1], RunCompleted)


def test_a_job_is_found_by_its_key_and_read_to_its_end(client: Client, run: RunRequest) -> None:
    """Submit twice, and read, if the token may."""
    key = f"job-{uuid4()}"
    try:
        job = client.jobs.submit(key, run)
    except ClientError as error:
        assert error.code in {"JOBS_UNAVAILABLE", "FORBIDDEN", "JOB_ACCOUNT_REQUIRED", "NOT_FOUND"}  # noqa: PT017
        return
    assert client.jobs.submit(key, run).id == job.id
    with client.job_events(job.id) as stream:
        assert stream.result().run_id == job.run_id


def test_a_conversation_begins_and_ends(client: Client, run: RunRequest) -> None:
    """Create, read and delete, if the token may."""
    try:
        begun = client.sessions.create({"provider": run["provider"], "model": run["model"], "mode": "history"})
        client.sessions.read(begun.session.id)
    except ClientError as error:
        codes = {"SESSIONS_UNAVAILABLE", "FORBIDDEN", "SESSION_ACCOUNT_REQUIRED", "UNSUPPORTED_CONTINUATION"}
        assert error.code in codes | {"NOT_FOUND"}  # noqa: PT017
        return
    name = begun.session.id
    turn = client.run({**run, "session": {"id": name, "revision": 0}})
    assert client.sessions.read(name).history[-1].content == turn.text
    client.sessions.delete(name)
    with pytest.raises(Refused, match="SESSION_NOT_FOUND"):
        client.sessions.read(name)
