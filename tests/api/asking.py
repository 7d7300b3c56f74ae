"""An edge over sessions and jobs kept in memory, and principals that can change, to post to."""

import json
from hashlib import sha256
from typing import Any

from msgspec.structs import replace

from actors.request import Catalog, Features, ProviderFacts, ToolFacts
from api.app import Edge, Gate, create_app
from api.grants import ApplicationToolGrant, Policy, Principal, RetrievalGrant
from api.parts import JobStore, Parts, SessionStore
from tests.api.asgi_client import Told, sent
from tests.host_rules import host_answer

NOBODY: Any = None
"""Who is never asked here."""
JSON = (b"content-type", b"application/json")
ALICE = Policy(
    subject="alice",
    providers=("mock", "other"),
    tools=("write",),
    application_tools=(ApplicationToolGrant("lookup"),),
    jobs=("submit", "read", "cancel"),
    sessions=("create", "read", "continue", "delete"),
    retrieval=RetrievalGrant(search=("notes",)),
)
EVERYTHING = Features(
    sessions=True, idempotency=True, approvals=True, application_tools=True, retrieval=True, context_resolver=True
)
FACTS = ProviderFacts(models=("demo",), capabilities={"tools": True})
CATALOG = Catalog(
    providers={"mock": FACTS, "other": FACTS}, tools={"write": ToolFacts(), "burn": ToolFacts()}, features=EVERYTHING
)


class People:
    """Principals by name, whose bearers are their names; what is durable of them may differ."""

    def __init__(self, **policies: Policy) -> None:
        self.presented = {name: Principal(sha256(name.encode()).hexdigest(), each) for name, each in policies.items()}
        self.kept = {each.id: each for each in self.presented.values()}

    def principal(self, bearer: str) -> Principal | None:
        return self.presented.get(bearer)

    def durable(self, principal_id: str) -> Principal | None:
        return self.kept.get(principal_id)

    def forget(self, name: str) -> None:
        """Let *name* be nobody from now on, though its bearer still is somebody."""
        del self.kept[self.presented[name].id]

    def change(self, name: str, **members: Any) -> None:
        """Let *name* be allowed something else from now on, though its bearer says what it said."""
        old = self.presented[name]
        self.kept[old.id] = Principal(old.id, replace(old.policy, **members))


class Asked:
    """A host with these stores, and what is posted to it."""

    def __init__(
        self,
        *,
        sessions: SessionStore | None = None,
        jobs: JobStore | None = None,
        people: People | None = None,
        catalog: Catalog = CATALOG,
    ) -> None:
        self.people = people or People(
            alice=ALICE, bob=replace(ALICE, subject="bob"), idle=Policy(subject="alice", providers=("mock",))
        )
        self.gate = Gate()
        self.app: Edge = create_app(
            Parts(
                runs=NOBODY,
                answers=NOBODY,
                catalog=catalog,
                tokens=self.people,
                discovery=NOBODY,
                sessions=sessions,
                jobs=jobs,
                gate=self.gate,
            )
        )

    async def post(self, path: str, body: Any, *, who: str = "alice") -> Told:
        """Post *body*, JSON or bytes as they are; the answer is one that a host may send."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        told = await sent(self.app, "POST", path.encode(), [JSON, (b"authorization", f"Bearer {who}".encode())], data)
        host_answer(told.status, told.headers, told.body)
        assert self.app.parts.faults.count == 0
        return told

    async def code(self, path: str, body: Any, *, who: str = "alice") -> str:
        """The code that is answered, or nothing for a success."""
        told = await self.post(path, body, who=who)
        return "" if told.status == 200 else str(json.loads(told.body)["error"]["code"])
