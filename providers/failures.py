"""What a vendor can do wrong, by code: the fixed public text and whether trying again may help (providers §5).

A vendor's own words are never forwarded.
"""

from collections.abc import Mapping
from typing import NamedTuple

from actors.errors import Failed


class Failure(NamedTuple):
    """How one code is told to clients."""

    message: str
    retryable: bool = False


FAILURES: Mapping[str, Failure] = {
    "PROVIDER_UNREACHABLE": Failure("The provider could not be reached.", retryable=True),
    "AUTH_REQUIRED": Failure("The provider has no credential."),
    "PROVIDER_AUTH": Failure("The provider rejected the credential."),
    "RATE_LIMITED": Failure("The provider limits the rate of requests.", retryable=True),
    "PROVIDER_ERROR": Failure("The provider answered with an error status."),
    "PROVIDER_FAILED": Failure("The provider reported a failure."),
    "PROVIDER_REFUSAL": Failure("The provider refused to answer."),
    "TRUNCATED_TOOL_CALL": Failure("The output limit cut a tool call."),
    "INVALID_PROVIDER_RESPONSE": Failure("The provider answered with malformed data."),
    "INVALID_STREAM": Failure("The provider's stream is not valid UTF-8."),
    "INCOMPLETE_STREAM": Failure("The provider's stream ended early."),
    "RESPONSE_TOO_LARGE": Failure("The provider's answer is too large."),
    "INTERNAL_ERROR": Failure("The model call failed."),
    "INVALID_TOOL_ARGUMENTS": Failure("The model wrote invalid tool arguments."),
    "UNSUPPORTED_MODALITY": Failure("The model cannot read this media type."),
    "UNSUPPORTED_CAPABILITY": Failure("The provider lacks a capability that the run asks for."),
    "IDLE_TIMEOUT": Failure("The run made no progress in time.", retryable=True),
    "CLI_AUTH_UNSUPPORTED": Failure("The native program's sign-in is not supported."),
    "CLI_AUTH_REQUIRED": Failure("The native program is not signed in."),
    "CLI_FAILED": Failure("The native program failed."),
    "CLI_POLICY_VIOLATION": Failure("The native program left its policy."),
}

_OTHER = Failure("The model call failed.")


def failed(code: str, *, retryable: bool | None = None, uncertain: bool = False) -> Failed:
    """The failure that *code* stands for; an uncertain one is never retryable unless that is said."""
    known = FAILURES.get(code, _OTHER)
    again = (known.retryable and not uncertain) if retryable is None else retryable
    return Failed(code, known.message, retryable=again, uncertain=uncertain)


def of_status(status: int) -> Failed | None:
    """The failure that an HTTP status stands for; None for one that says the vendor answers (providers §5)."""
    match status:
        case 401 | 403:
            return failed("PROVIDER_AUTH")
        case 429:
            return failed("RATE_LIMITED")
        case _ if 200 <= status <= 299:  # noqa: PLR2004 - what HTTP calls success
            return None
        case _:
            return failed("PROVIDER_ERROR", retryable=status >= 500)  # noqa: PLR2004 - the server's own errors
