"""What to do about a refusal, in words of the command line: the codes of the protocol know nothing of commands.

Nothing here waits, reads a clock or rolls a die.
"""

from collections.abc import Mapping, Sequence

from runstream.models import key_of
from runstream.settings import Settings

Mends = Mapping[str, str]
"""By the code of a refusal, what mends it."""

SERVING: Mends = {
    "ADDRESS_UNAVAILABLE": "stop what listens there, or choose another listen.host or listen.port",
    "INVALID_TLS": "correct listen.certificate and listen.key",
}
SOCKET: Mends = {"ADDRESS_UNAVAILABLE": "choose another path"}


def mended(lines: Sequence[str], mends: Mends) -> Sequence[str]:
    """The *lines* of an error, those that begin with a code that can be mended with how."""
    return [f"{line} -> {mends[code]}" if (code := line.partition(":")[0]) in mends else line for line in lines]


def asking(settings: Settings, provider: str, base_url: str) -> Mends:
    """Of a question to an instance of these settings."""
    models = f"`runstream providers {f'--base-url {base_url}' if base_url else provider}` tells which there are"
    found = next((one for one in settings.providers if one.id == provider), None)
    vendor = None if found is None else found.vendor
    mends = {"UNKNOWN_PROVIDER": "`runstream providers` tells which there are", "UNSUPPORTED_MODEL": models}
    if found is not None and vendor is not None:
        mends["PROVIDER_UNREACHABLE"] = f"it was looked for at {found.address(vendor)}"
        key = key_of(found, vendor)
        mends["AUTH_REQUIRED"] = "give it one in the settings" if key is None else f"put it into {key.told}"
    return mends


def remote(provider: str) -> Mends:
    """Of a run on a host elsewhere."""
    return {
        "UNAUTHORIZED": "RUNSTREAM_TOKEN, or --token, must hold a token of that host",
        "FORBIDDEN": f"ask whoever keeps the host to grant your token the provider {provider}",
        "NOT_FOUND": "--url is the address of a host, without /v1",
    }


def looking(settings: Settings) -> Mends:
    """Of a look at a run."""
    place = settings.state_dir if settings.profile == "local" else "the Redis of the settings"
    return {"RUN_NOT_FOUND": f"looked for in {place}; --state-dir or --config names another place"}
