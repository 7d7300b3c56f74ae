"""Makes the provider instances that the settings name, and holds their connections while the host lives."""

import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
from msgspec.structs import replace

from actors.ports import Model, ProviderInfo
from providers.mock import Mock, conformance
from providers.scripted import Scripted, described
from providers.vendor import Vendor
from runstream.provider_settings import ProviderSettings, vendor_of
from runstream.reading import Fault
from runstream.settings import Settings, SettingsError

KEY_BYTES_MAX = 8_192
"""Of a file that holds a key."""


@asynccontextmanager
async def open_models(settings: Settings) -> AsyncGenerator[Mapping[str, Model]]:
    """Open the instances by id.

    Raises:
        SettingsError: an instance asks a vendor, and the HTTP client of the extras is not installed.
    """
    async with AsyncExitStack() as stack:
        models: dict[str, Model] = {}
        for number, provider in enumerate(settings.providers):
            vendor = provider.vendor
            if vendor is None:
                models[provider.id] = _local(provider)
            else:
                models[provider.id] = await _asking(provider, vendor, number, stack)
        yield models


def with_named(settings: Settings, name: str, base_url: str = "") -> Settings:
    """The settings, and where none of their instances has that *name* but a kind does, one of this kind as it comes.

    With a *base_url* the one that is made takes the place of any other of its name.

    Raises:
        SettingsError: this kind cannot be used as it comes, or the *base_url* not at all.
    """
    vendor = vendor_of(name)
    others = tuple(provider for provider in settings.providers if provider.id != name)
    if vendor is None or (len(others) < len(settings.providers) and not base_url):
        return settings
    made = ProviderSettings(id=name, kind=name, base_url=base_url)  # type: ignore[arg-type]  # it is a kind
    if faults := tuple(fault._replace(key=f"{name}.{fault.key}") for fault in made.faults()):
        raise SettingsError(faults)
    return replace(settings, providers=(*others, made))


def _local(provider: ProviderSettings) -> Model:
    """A model that comes with the program."""
    if provider.kind == "mock":
        model = Mock(conformance())
        model.info = _info(model.info, provider)
        return model
    scripts = provider.followed()
    return Scripted(_info(described(scripts, provider.id), provider), scripts)


def _info(info: ProviderInfo, provider: ProviderSettings) -> ProviderInfo:
    models = info.models if provider.models is None else provider.models
    return replace(info, id=provider.id, name=provider.name or info.name, models=models, account=provider.account)


async def _asking(provider: ProviderSettings, vendor: Vendor, number: int, stack: AsyncExitStack) -> Model:
    """Open an instance that asks a vendor."""
    try:
        # Imported here, because hosts without vendors do without.
        from providers.api import ApiModel  # noqa: PLC0415
        from providers.http import open_http  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if error.name != "httpx2":
            raise
        mend = f'needs the HTTP client of an extra: pip install "runstream[{provider.kind.split("-")[0]}]"'
        raise SettingsError((Fault(f"providers[{number}].kind", mend),)) from None
    key = key_of(provider, vendor)
    info = vendor.info(
        instance=provider.id,
        name=provider.name,
        auth_mode="none" if key is None else "api-key",
        models=provider.models,
        media=provider.input_media_types,
        tools=provider.tools,
        account=provider.account,
    )
    structured = vendor.structured if provider.structured_output is None else provider.structured_output
    http = await stack.enter_async_context(open_http(provider.address(vendor), provider.id))
    return ApiModel(info, vendor, http, None if key is None else key.read, structured=structured)


class EnvironmentKey:
    """A key in a variable of the environment."""

    def __init__(self, variable: str) -> None:
        self.told = f"the variable {variable}"
        self._variable = variable

    async def read(self) -> str:
        """Return the key, or an empty text."""
        return os.environ.get(self._variable, "")


class FileKey:
    """A key in a file, read each time, so that a new one holds at once."""

    def __init__(self, path: anyio.Path) -> None:
        self.told = f"the file {path}"
        self._path = path

    async def read(self) -> str:
        """Return the key, or an empty text."""
        try:
            async with await self._path.open("rb") as file:
                return (await file.read(KEY_BYTES_MAX)).decode().strip()
        except (OSError, UnicodeDecodeError):
            return ""


def key_of(provider: ProviderSettings, vendor: Vendor) -> EnvironmentKey | FileKey | None:
    """Where the key of an instance is; None where none is wanted."""
    if provider.key_file is not None:
        return FileKey(anyio.Path(provider.key_file))
    variable = provider.key_env or vendor.key_env
    return EnvironmentKey(variable) if variable else None
