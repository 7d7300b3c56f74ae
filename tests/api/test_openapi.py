"""The OpenAPI document: up to date, sound, and true of the host."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import jsonschema
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from api import openapi
from api.pipeline import ROUTES
from tests.actors.reviewing import call
from tests.api.asking import Asked
from tests.api.fake_runs import texts
from tests.api.fake_stores import FakeJobs, FakeSessions
from tests.api.host.hosting import creating, rounds
from tests.api.host.test_host_runs import reviewed
from tests.api.host.test_routes import door, read
from tests.api.hosted import TOKENS, hosted
from tests.host_client import envelope

ROOT = Path(__file__).parent.parent.parent
CHECKS: list[Any] = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


@pytest.mark.repo
def test_the_document_in_docs_is_up_to_date() -> None:
    written = (ROOT / "docs" / "openapi.json").read_text(encoding="utf-8")
    assert written == openapi.rendered(), "run: python -m api.openapi > docs/openapi.json"


def test_every_route_is_in_the_document() -> None:
    told = openapi.document()["paths"]
    assert {(method.upper(), path) for path, methods in told.items() for method in methods} == {
        *((method, target.decode()) for method, target in ROUTES if b"?" not in target),
        ("GET", "/v1/runs/{runId}/events"),
        ("GET", "/host/v1/runs/{runId}/events"),
    }


def test_what_a_job_may_ask_for_is_in_the_document() -> None:
    submission = openapi.document()["components"]["schemas"]["JobSubmission"]
    assert submission["properties"].keys() == {"key", "request", "interactive"}


def test_every_schema_of_the_document_is_one() -> None:
    for schema in openapi.document()["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


def test_the_document_has_no_null_for_what_may_be_absent_but_where_the_host_protocol_has_one() -> None:
    document = openapi.document()
    of_wire = {name: one for name, one in document["components"]["schemas"].items() if not name.startswith("Host")}
    assert "null" not in json.dumps([document["paths"], of_wire])


@pytest.mark.anyio
async def test_envelopes_and_streams_are_what_the_document_says() -> None:
    schemas = openapi.document()["components"]

    def sound(value: Any, name: str) -> Any:
        jsonschema.Draft202012Validator({"$ref": f"#/components/schemas/{name}", "components": schemas}).validate(value)
        return value

    async with door(rounds([call("reviewed")]), reviewed()) as at:

        async def asked(operation: str, key: str = "", **body: Any) -> Any:
            _, told = await at.post(sound(envelope(operation, body, key=key), "HostEnvelope"))
            return sound(told, "HostAnswer" if told["ok"] else "HostRefusal")

        await asked("create_run", "k", **creating("run-1", input={"prompt": "x", "tools": ["reviewed"]}))
        view = await at.desk.waiting("run-1")
        named = {"runId": "run-1", "expectedRevision": 3, "approvalId": view["approval"]["approvalId"]}
        assert (await asked("resolve_approval", "k", **named, resolution="approved"))["ok"]
        assert (await asked("get_run", runId="run-1"))["body"]["approval"]["resolution"] == "approved"
        assert not (await asked("resume_run", "k", **named))["ok"]
        assert (await asked("resume_run", "k2", **named | {"expectedRevision": 4}))["ok"]
        await at.desk.ended("run-1")
        assert (await asked("get_run", runId="run-1"))["body"]["result"]
        assert not (await asked("cancel_run", "k", runId="run-1", expectedRevision=1))["ok"]
        assert (await asked("list_events", runId="run-1"))["body"]["events"]
        assert not (await asked("get_run", runId="nope"))["ok"]
        stream = read((await at.get("/host/v1/runs/run-1/events")).body)
        assert [sound(event, "HostEvent")["sequence"] for event in stream] == list(range(1, len(stream) + 1))


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A host in a thread of its own, because the generated tests wait without an event loop."""
    found: list[str] = []
    ready, done = threading.Event(), threading.Event()

    async def serve() -> None:
        async with hosted(texts("x")) as host:
            found.append(host.listening.url)
            ready.set()
            await anyio.to_thread.run_sync(done.wait)

    thread = threading.Thread(target=anyio.run, args=(serve,))
    thread.start()
    assert ready.wait(10)
    yield found[0]
    done.set()
    thread.join(10)


TOO_LARGE = ["/v1/jobs/submit", "/host/v1"]
"""Routes whose bodies take long to make up: runs within jobs, and envelopes, which have tests of their own."""


@schemathesis.openapi.from_dict(openapi.document()).exclude(path=TOO_LARGE).parametrize()
@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=(HealthCheck.too_slow, HealthCheck.data_too_large),
    phases=[Phase.explicit, Phase.generate],
)
def test_the_host_answers_as_the_document_says(case: Any, address: str) -> None:
    headers = {"Authorization": f"Bearer {TOKENS['reader']}"}
    case.call_and_validate(base_url=address, headers=headers, checks=CHECKS)


@pytest.mark.anyio
async def test_sessions_and_jobs_are_asked_for_and_shown_as_the_document_says() -> None:
    store = FakeJobs()
    host = Asked(sessions=FakeSessions(), jobs=store)
    told = await exchanged(host, "/v1/sessions/create", {"provider": "mock", "model": "demo", "mode": "history"})
    for path in ("/v1/sessions/read", "/v1/sessions/delete"):
        await exchanged(host, path, {"id": told["session"]["id"]})
    request = {"provider": "mock", "model": "demo", "input": "x"}
    told = await exchanged(host, "/v1/jobs/submit", {"key": "k", "request": request})
    store.end(told["id"], "completed")
    for path in ("/v1/jobs/read", "/v1/jobs/cancel"):
        await exchanged(host, path, {"id": told["id"]})
    assert (await exchanged(host, "/v1/jobs/events", {"id": told["id"], "after": 0}))["events"]


async def exchanged(host: Asked, path: str, body: dict[str, Any]) -> Any:
    """The answer to *body*, both as the document says."""
    document = openapi.document()
    asked = document["paths"][path]["post"]
    told = await host.post(path, body)
    assert told.status == 200
    answer = json.loads(told.body)
    for value, content in ((body, asked["requestBody"]["content"]), (answer, asked["responses"]["200"]["content"])):
        schema = content["application/json"]["schema"] | {"components": document["components"]}
        jsonschema.Draft202012Validator(schema).validate(value)
    return answer
