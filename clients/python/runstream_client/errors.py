"""What a client raises, by who must act: the caller, whoever asked for the run, the host's operator, or the network.

Every error has the `code` that the protocol gives it; a code that this client does not know is kept as it came.
"""

from collections.abc import Mapping
from typing import Any

from typing_extensions import override


class ClientError(Exception):
    """An error with the code, the hint and the outcome that the protocol gives it."""

    def __init__(self, code: str, message: str = "", *, retryable: bool = False, outcome: str | None = None) -> None:
        super().__init__(f"{code}: {message}" if message else code)
        self.code = code
        self.message = message
        self.retryable = retryable
        """A hint, and never a permission to repeat an effect."""
        self.outcome = outcome
        """`uncertain` where nobody knows whether an effect happened."""

    @override
    def __str__(self) -> str:
        return f"{self.code}: {self.message}" if self.message else self.code


class Misuse(ClientError):
    """The client was asked for what it does not do: the program that uses it must change."""


class Refused(ClientError):
    """The host said no; or, to a run that is not streamed, that it has no result (runs §1 has one answer for both)."""

    def __init__(
        self,
        code: str,
        message: str = "",
        *,
        status: int,
        retryable: bool = False,
        outcome: str | None = None,
        members: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(code, message, retryable=retryable, outcome=outcome)
        self.status = status
        """The HTTP status, for people: programs ask for the code."""
        self.members = members or {}
        """The whole error object as it came, members of later hosts included."""


class RunError(ClientError):
    """The run began, was streamed, and ended without a result."""

    def __init__(
        self,
        code: str,
        message: str = "",
        *,
        run_id: str,
        cancelled: bool,
        retryable: bool = False,
        outcome: str | None = None,
    ) -> None:
        super().__init__(code, message, retryable=retryable, outcome=outcome)
        self.run_id = run_id
        self.cancelled = cancelled
        """Whether it ended as `run.cancelled`, and not as `run.failed`."""


class ProtocolBroken(ClientError):
    """The host sent what no host may send; nothing that follows is believed."""


class Unreachable(ClientError, ConnectionError):
    """No connection came about, so nothing was sent."""


class ConnectionLost(ClientError, ConnectionError):
    """The connection ended or fell silent too early; that says nothing about what the host did."""
