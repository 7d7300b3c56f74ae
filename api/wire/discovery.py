"""What a client may ask before it runs anything: is the host up, what does it speak, which providers are there."""

import msgspec

from api import pipeline
from api.parts import Parts, advertised

_encode = msgspec.json.Encoder().encode
_HEALTH = _encode({"status": "ok", "protocol": "agenticdriver.v1"})


def health() -> bytes:
    """The answer to `GET /health`."""
    return _HEALTH


def protocol(parts: Parts) -> bytes:
    """The answer to `GET /v1/protocol` (overview §10)."""
    return _encode(
        {
            "protocol": "agenticdriver",
            "version": "1.0",
            "supportedVersions": ["1.0"],
            "features": advertised(
                parts.features, parts.catalog.features, jobs=parts.jobs is not None, viewer=parts.viewer is not None
            ),
        }
    )


async def providers(parts: Parts, admitted: pipeline.Admitted) -> bytes:
    """Answer `GET /v1/providers`: the instances in the caller's grant, all of them for `manageProviders`."""
    policy = admitted.principal.policy if admitted.principal is not None else None
    granted = policy.providers if policy is not None else ()
    ids = parts.catalog.providers.keys() if policy is not None and policy.manage_providers else granted
    shown = await parts.discovery.listed(tuple(ids), refresh=admitted.route == "providers-refreshed")
    return _encode({"providers": shown})
