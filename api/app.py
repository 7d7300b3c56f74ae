"""The ASGI application: the checks of `pipeline`, then Litestar's routes.

It can be served as it is, or mounted under a prefix inside another application.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from litestar import Litestar, MediaType, Request, Response, asgi, get
from litestar.types import Message, Receive, Scope, Send
from typing_extensions import override

from api import pipeline, problems
from api.answers import CALL, Call, answer, call_of
from api.host import routes as host
from api.parts import Faults, Gate, Limits, Parts
from api.wire import approvals, discovery, inbox, jobs, readiness, run_events, runs, sessions, tool_executions

__all__ = ["Edge", "Faults", "Gate", "Limits", "Parts", "create_app"]

_PATHS: dict[pipeline.Route, str] = {
    "health": "/health",
    "ready": "/ready",
    "metrics": "/metrics",
    "protocol": "/v1/protocol",
    "providers": "/v1/providers",
    "providers-refreshed": "/v1/providers",
    "runs": "/v1/runs",
    "decisions": "/v1/approvals/decisions",
    "progress": "/v1/tool-executions/progress",
    "results": "/v1/tool-executions/results",
    "session-create": "/v1/sessions/create",
    "session-read": "/v1/sessions/read",
    "session-delete": "/v1/sessions/delete",
    "job-submit": "/v1/jobs/submit",
    "job-read": "/v1/jobs/read",
    "job-cancel": "/v1/jobs/cancel",
    "job-events": "/v1/jobs/events",
    "run-events": "/v1/run-events",
    "inbox": "/v1/approvals/list",
    "host": "/host/v1",
    "host-events": "/host/v1/run-events",
}
Serve: TypeAlias = Callable[[Parts, Call, Receive], Awaitable[None]]
_SERVED: Mapping[pipeline.Route, Serve] = {
    "runs": runs.run,
    "decisions": approvals.decide,
    "inbox": inbox.look,
    "progress": tool_executions.report,
    "results": tool_executions.deliver,
    "session-create": sessions.create,
    "session-read": sessions.look,
    "session-delete": sessions.delete,
    "job-submit": jobs.submit,
    "job-read": jobs.look,
    "job-cancel": jobs.cancel,
    "job-events": jobs.events,
    "run-events": run_events.look,
    "host": host.exchange,
    "host-events": host.events,
}


class Edge(Litestar):
    """Litestar behind the checks; a request that does not pass them never reaches its router."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.rules = pipeline.Rules(
            parts.tokens,
            frozenset(origin.encode() for origin in parts.allowed_origins),
            parts.tls,
            parts.limits.body_bytes_max,
            parts.diagnostics,
            parts.exposition is not None,
            parts.host is not None,
        )
        super().__init__(  # pyright: ignore[reportUnknownMemberType] - some of its optional types are bare
            route_handlers=_handlers(parts),
            openapi_config=None,
            logging_config=None,
            exception_handlers={Exception: _untyped},
        )

    @override
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one connection."""
        match scope["type"]:
            case "lifespan":
                await super().__call__(scope, receive, send)
            case "http":
                await self._serve(scope, receive, send)
            case _:
                await send({"type": "websocket.close", "code": 1000})

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        match pipeline.decided(self.rules, self.parts.gate.state, pipeline.head_of(scope)):
            case pipeline.Answered() as told:
                await answer(send, told)
            case pipeline.Admitted() as admitted:
                if admitted.correlation is None:
                    await self._route(scope, receive, Call(admitted, send))
                    return
                with self.parts.telemetry.caller(admitted.correlation):
                    await self._route(scope, receive, Call(admitted, send))

    async def _route(self, scope: Scope, receive: Receive, call: Call) -> None:
        async def send(message: Message) -> None:
            """Put the headers of every answer before the route's own."""
            if message["type"] == "http.response.start":
                message["headers"] = [*call.admitted.headers, *message["headers"]]
            await call.send(message)

        path = _PATHS[call.admitted.route]
        inner: dict[str, Any] = {
            **scope,
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            # Litestar judges `Host`, which the protocol does not; what the checks had to see they have seen.
            "headers": [line for line in scope["headers"] if line[0] != b"host"],
            "state": {},
            CALL: call,
        }
        await super().__call__(inner, receive, send)  # type: ignore[arg-type]


def create_app(parts: Parts) -> Edge:
    """Return the application over *parts*."""
    return Edge(parts)


def _handlers(parts: Parts) -> list[Any]:
    @get("/health", sync_to_thread=False)
    def health() -> Response[bytes]:
        return _json(discovery.health())

    @get("/ready", sync_to_thread=False)
    def ready() -> Response[bytes]:
        status, body = readiness.shown(readiness.why_not(_facts(parts)))
        return _json(body, status)

    @get("/metrics", sync_to_thread=False)
    def metrics() -> Response[bytes]:
        text = b"" if parts.exposition is None else parts.exposition()
        return Response(text, media_type=MediaType.TEXT, headers={"content-type": _EXPOSITION_TYPE})

    @get("/v1/protocol", sync_to_thread=False)
    def protocol() -> Response[bytes]:
        return _json(discovery.protocol(parts))

    @get("/v1/providers")
    async def providers(request: Request[Any, Any, Any]) -> Response[bytes]:
        return _json(await discovery.providers(parts, call_of(request.scope).admitted))

    return [
        health,
        ready,
        metrics,
        protocol,
        providers,
        *(_served_by(parts, _PATHS[route], serve) for route, serve in _SERVED.items()),
    ]


def _served_by(parts: Parts, path: str, serve: Serve) -> Any:
    @asgi(path, copy_scope=False)
    async def post(scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001 - the call's own send is quicker
        await serve(parts, call_of(scope), receive)

    return post


def _facts(parts: Parts) -> readiness.Facts:
    facts, state = parts.facts(), parts.gate.state
    return facts._replace(starting=facts.starting or state == "starting", draining=facts.draining or state == "closing")


def _json(body: bytes, status: int = 200) -> Response[bytes]:
    return Response(body, status_code=status, media_type=MediaType.JSON, headers={"content-type": _JSON_TYPE})


def _untyped(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """Return the fixed answer for whatever no rule foresaw."""
    edge = request.app
    if isinstance(edge, Edge):
        edge.parts.faults.note(error, request.url.path)
    return _json(problems.envelope(problems.INTERNAL), problems.status_of(problems.INTERNAL.code))


_JSON_TYPE = pipeline.JSON[1].decode()
_EXPOSITION_TYPE = "text/plain; version=0.0.4; charset=utf-8"
