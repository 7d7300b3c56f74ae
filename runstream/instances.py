"""`runstream providers`: the provider instances as a table, and the models of one."""

from collections.abc import Iterable

import msgspec

from providers.discovery import Discovery
from providers.listing import Provider
from runstream.models import open_models
from runstream.output import Output
from runstream.settings import Settings
from runstream.tables import cut, neutral

_CAPABILITIES = {
    "tools": "tools",
    "textStreaming": "streaming",
    "safeRetries": "retries",
    "nativeContinuation": "native",
    "images": "images",
    "documents": "documents",
}
"""What the table says of a capability; the others every instance has."""
_WIDTHS = (20, 18, 16, 28, 7)


class UnknownInstance(Exception):
    """There is no such provider; the text names those there are."""


class NoModels(Exception):
    """No model of the instance is known that runs may name; the text says why."""


async def show(settings: Settings, instance: str | None, output: Output, *, as_json: bool) -> None:
    """Probe all instances, or one, and print how they stand.

    Raises:
        UnknownInstance: there is none of that name.
        NoModels: it told of none.
    """
    known = [provider.id for provider in settings.providers]
    if instance is not None and instance not in known:
        raise UnknownInstance(f"there is no provider {instance!r}; there are {', '.join(known) or 'none'}")
    async with open_models(settings) as models, Discovery(models) as discovery:
        found = await discovery.listed(models if instance is None else [instance])
    if as_json:
        await output.json(msgspec.json.encode({"providers": found}))
        return
    for line in _table(found) if instance is None else _models(found[0]):
        await output.line(line)


def _table(found: Iterable[Provider]) -> Iterable[str]:
    yield _row("provider", "vendor", "health", "code", "models", "capabilities")
    for one in found:
        told = [word for name, word in _CAPABILITIES.items() if one.capabilities.get(name)]
        count = f"{len(one.model_catalog.models)}{'' if one.model_catalog.complete else '+'}"
        models = "-" if one.model_catalog.source == "unavailable" else count
        yield _row(one.id, one.vendor, one.health.status, one.health.code, models, ", ".join(told))


def _models(one: Provider) -> Iterable[str]:
    """The models of an instance that runs may name."""
    listed = one.model_catalog.models
    allowed = [model for model in listed if one.models is None or model in one.models]
    if not allowed:
        raise NoModels(f"{one.health.code}: {one.health.message}")
    yield from (neutral(model, keep="") for model in allowed)


def _row(*cells: str) -> str:
    padded = [f"{cut(cell, width):<{width}}" for cell, width in zip(cells, _WIDTHS, strict=False)]
    return neutral("  ".join([*padded, *cells[len(_WIDTHS) :]]).rstrip(), keep="")
