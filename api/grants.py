"""What a token allows: static token entries, who a bearer is, and whether a principal may run a request (overview §7).

Omitted lists deny.
Tokens are kept as SHA-256 digests only; nothing here can be turned back into one.
"""

import re
from collections.abc import Callable, Iterable
from hashlib import sha256
from hmac import compare_digest
from typing import Literal, NamedTuple, Protocol, TypeAlias, get_args

from msgspec import Struct
from typing_extensions import override

from actors.decisions import Caller
from actors.errors import Problem, Refused
from actors.events import RunAccepted
from actors.jobs import May
from actors.request import RunRequest, decoded_request
from actors.sessions import Holder

JobGrant: TypeAlias = Literal["submit", "read", "cancel"]
SessionGrant: TypeAlias = Literal["create", "read", "continue", "delete"]

SUBJECT_CHARS_MAX = 128
NAME_CHARS_MAX = 256
NAMES_MAX = 256
APPLICATION_TOOLS_MAX = 32
TOKEN_CHARS_MIN = 32
BEARER_CHARS_MAX = 4_096

FORBIDDEN = Problem("FORBIDDEN", "This token does not allow the operation.")

_DIGEST = re.compile(r"[0-9a-f]{64}")
_TOOL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,63}")
_SENDABLE = re.compile(r"[!-~]+")
_CORPUS = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._:-]{0,127}")


class InvalidPolicy(ValueError):
    """A token entry breaks a rule; the message says which member and why. Its code is INVALID_AUTH_POLICY."""


def _sized(text: str, most: int) -> bool:
    """Whether *text* has 1 to *most* characters as the protocol counts them: UTF-16 code units."""
    return 1 <= len(text.encode("utf-16-le", "surrogatepass")) // 2 <= most


def _need(holds: bool, what: str) -> None:  # noqa: FBT001 - it reads as an assertion
    if not holds:
        raise InvalidPolicy(what)


class ApplicationToolGrant(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A tool that the application executes itself; True or nothing forces an approval for it."""

    name: str
    requires_approval: bool = True

    def __post_init__(self) -> None:
        """Refuse what is no tool name."""
        _need(_TOOL.fullmatch(self.name) is not None, "applicationTools: not a tool name")


class RetrievalGrant(Struct, frozen=True, forbid_unknown_fields=True):
    """Corpora that may be searched, added to (ingestion too) and deleted from."""

    search: tuple[str, ...] = ()
    index: tuple[str, ...] = ()
    delete: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what is no corpus id."""
        for name, corpora in (("search", self.search), ("index", self.index), ("delete", self.delete)):
            _need(len(corpora) <= NAMES_MAX, f"retrieval.{name}: more than {NAMES_MAX}")
            _need(all(_CORPUS.fullmatch(one) for one in corpora), f"retrieval.{name}: not a corpus id")


class Policy(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """What a principal may do."""

    subject: str
    providers: tuple[str, ...]
    tools: tuple[str, ...] = ()
    approve_tools: tuple[str, ...] = ()
    application_tools: tuple[ApplicationToolGrant, ...] = ()
    jobs: tuple[JobGrant, ...] = ()
    sessions: tuple[SessionGrant, ...] = ()
    retrieval: RetrievalGrant = RetrievalGrant()
    manage_providers: bool = False
    read_metrics: bool = False

    def __post_init__(self) -> None:
        """Refuse what is out of bounds."""
        _need(_sized(self.subject, SUBJECT_CHARS_MAX), f"subject: 1 to {SUBJECT_CHARS_MAX} characters")
        for name, names in (("providers", self.providers), ("tools", self.tools), ("approveTools", self.approve_tools)):
            _need(len(names) <= NAMES_MAX, f"{name}: more than {NAMES_MAX}")
            _need(all(_sized(one, NAME_CHARS_MAX) for one in names), f"{name}: 1 to {NAME_CHARS_MAX} characters each")
        granted = [tool.name for tool in self.application_tools]
        _need(len(granted) <= APPLICATION_TOOLS_MAX, f"applicationTools: more than {APPLICATION_TOOLS_MAX}")
        _need(len(set(granted)) == len(granted), "applicationTools: a name twice")
        _need(len(self.jobs) <= len(get_args(JobGrant)), "jobs: more than there are")
        _need(len(self.sessions) <= len(get_args(SessionGrant)), "sessions: more than there are")


class TokenEntry(Policy, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A static token: the digest of its text instead of the text, and what it allows."""

    digest: str

    @override
    def __post_init__(self) -> None:
        """Refuse what is no digest, and what a policy refuses."""
        _need(_DIGEST.fullmatch(self.digest) is not None, "digest: 64 lower-case hex digits of a SHA-256")
        Policy.__post_init__(self)


class Principal(Struct, frozen=True):
    """Who asks: an id that names the credential without being one, and what it allows."""

    id: str
    policy: Policy

    @property
    def subject(self) -> str:
        """Who owns what this principal makes."""
        return self.policy.subject


class Principals(Protocol):
    """Who knows principals: static tokens, or whatever an embedding program has."""

    def principal(self, bearer: str) -> Principal | None:
        """Who sent *bearer*."""
        ...

    def durable(self, principal_id: str) -> Principal | None:
        """Who the principal of this id is now, if it still is one: what its credential may do without being presented."""
        ...


class Tokens:
    """All static tokens of a host.

    Raises:
        InvalidPolicy: two entries have one digest.
    """

    def __init__(self, entries: Iterable[TokenEntry]) -> None:
        self._known = tuple((bytes.fromhex(entry.digest), Principal(entry.digest, entry)) for entry in entries)
        _need(len({digest for digest, _ in self._known}) == len(self._known), "digest: two entries have the same token")

    def principal(self, bearer: str) -> Principal | None:
        """Who sent *bearer*; every entry is compared, each in constant time, so the time taken tells nothing."""
        asked = sha256(bearer.encode("utf-8", "surrogatepass")).digest()
        found = None
        for digest, principal in self._known:
            if compare_digest(digest, asked):
                found = principal
        return found

    def durable(self, principal_id: str) -> Principal | None:
        """Whose entry has this id; it is no secret."""
        return next((principal for _, principal in self._known if principal.id == principal_id), None)


def token_digest(token: str) -> str:
    """What stands for *token* in an entry.

    Raises:
        InvalidPolicy: the token is shorter than 32 characters, or no header can carry it.
    """
    bounds = f"token: {TOKEN_CHARS_MIN} to {BEARER_CHARS_MAX} characters"
    _need(TOKEN_CHARS_MIN <= len(token) <= BEARER_CHARS_MAX, bounds)
    _need(_SENDABLE.fullmatch(token) is not None, "token: printable ASCII without spaces")
    return sha256(token.encode()).hexdigest()


def allows_run(principal: Principal, request: RunRequest) -> Refused | None:
    """Why *principal* may not run *request* (runs §4 step 16), or nothing."""
    policy = principal.policy
    defined = {tool.name for tool in request.application_tools or ()}
    granted = {tool.name for tool in policy.application_tools}
    wanted = request.retrieval
    if (
        request.provider in policy.providers
        and all(name in policy.tools for name in request.tools or () if name not in defined)
        and defined <= granted
        and (wanted is None or wanted.corpus in policy.retrieval.search)
        and (request.session is None or "continue" in policy.sessions)
    ):
        return None
    return _forbidden()


def job_principals(known: Principals, presented: Principal, operation: JobGrant) -> tuple[Principal, Principal]:
    """Those whose grants together bound a call about jobs: *presented*, and the same principal as it is now (jobs §3).

    Raises:
        Refused: FORBIDDEN, it is gone, is another subject's by now, or one of both does not allow the *operation*.
    """
    now = known.durable(presented.id)
    if now is None or now.subject != presented.subject:
        raise _forbidden()
    if operation not in presented.policy.jobs or operation not in now.policy.jobs:
        raise _forbidden()
    return presented, now


def may_use_job(*principals: Principal) -> May:
    """Whether all *principals* may run what a stored run runs: its provider, tools and corpus."""

    def may(accepted: RunAccepted) -> bool:
        if accepted.host is not None and accepted.host.problem is not None:
            return True  # it runs nothing
        request = decoded_request(accepted.request)
        return all(allows_run(principal, request) is None for principal in principals)

    return may


def still_allows(known: Principals, accepted: RunAccepted) -> Problem | None:
    """Why a job may not be taken up for the principal that submitted it (jobs §3), or nothing."""
    if accepted.host is not None and not accepted.principal:
        return None  # created on the spot, by whom the settings name
    now = known.durable(accepted.principal)
    if now is None or now.subject != accepted.subject or "submit" not in now.policy.jobs:
        return FORBIDDEN
    return None if may_use_job(now)(accepted) else FORBIDDEN


class HostAccess(NamedTuple):
    """What a principal may do through the Host protocol, which has no grants of its own."""

    subject: str
    credential: str
    """Whose credential must still be good when a run is taken up; empty where that is the host's own settings."""
    waived: frozenset[str]
    may_create: Callable[[RunRequest | None], bool]
    """Whether it may begin a run; None is one that runs nothing."""
    may_see: May
    may_decide: Callable[[str, str], bool]
    """Of provider and tool name."""


def host_access(known: Principals | None, presented: Principal) -> HostAccess:
    """What *presented* may do through the Host (Host mapping §3); without *known* credentials it has none of its own.

    It may create what it may submit as a job, see and end what it may run, and decide by `approveTools`.
    """

    def may_create(request: RunRequest | None) -> bool:
        try:
            principals = (presented,) if known is None else job_principals(known, presented, "submit")
        except Refused:
            return False
        if "submit" not in presented.policy.jobs:
            return False
        return request is None or all(allows_run(one, request) is None for one in principals)

    return HostAccess(
        presented.subject,
        "" if known is None else presented.id,
        waived(presented),
        may_create,
        may_use_job(presented),
        caller_of(presented).may_decide,
    )


def holder_of(principal: Principal) -> Holder:
    """Who asks for sessions, and what *principal* may do with them."""
    policy = principal.policy

    def may_use(provider: str) -> bool:
        return provider in policy.providers

    return Holder(policy.subject, may_use, frozenset(policy.sessions))


def waived(principal: Principal) -> frozenset[str]:
    """The application tools that *principal* lets pass without review (application-tools §5)."""
    return frozenset(tool.name for tool in principal.policy.application_tools if not tool.requires_approval)


def caller_of(principal: Principal) -> Caller:
    """Who answers, and which reviews and tickets *principal* may answer (approvals §3.1, application-tools §4.3)."""
    policy = principal.policy
    executed = {tool.name for tool in policy.application_tools}

    def may_decide(provider: str, tool: str) -> bool:
        return provider in policy.providers and tool in policy.approve_tools

    def may_execute(provider: str, tool: str) -> bool:
        return provider in policy.providers and tool in executed

    return Caller(policy.subject, may_decide, may_execute)


def _forbidden() -> Refused:
    return Refused(FORBIDDEN.code, FORBIDDEN.message)
