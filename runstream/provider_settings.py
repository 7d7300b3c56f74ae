"""The section of the settings that names provider instances: which vendor, where, with whose key, for which models."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias
from urllib.parse import urlsplit

from msgspec import Meta, Struct

from api.grants import NAME_CHARS_MAX
from providers import InvalidScript, Script, ready, scripts
from providers.listing import MEDIA_TYPES, MODELS_MAX
from providers.vendor import Vendor
from providers.vendors import VENDORS
from runstream.reading import Fault
from runstream.sections import Id

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1", "[::1]"})
"""Where plain HTTP may be spoken (overview §1, providers §4)."""

ModelId: TypeAlias = Annotated[
    str,
    Meta(
        pattern=r"^[a-zA-Z0-9][a-zA-Z0-9._:/\[\]-]{0,199}\Z",
        description="a model id: letters, digits and . _ : / [ ] -, at most 200 of them, a letter or digit first",
    ),
]
Variable: TypeAlias = Annotated[
    str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,99}\Z", description="the name of an environment variable")
]
MediaType: TypeAlias = Literal[
    "text/plain", "text/markdown", "image/png", "image/jpeg", "image/webp", "application/pdf"
]

_ONLY_OF_APIS = ("base_url", "key_env", "key_file", "input_media_types", "structured_output")


class ProviderSettings(Struct, frozen=True, kw_only=True):
    """One provider instance."""

    id: Id
    kind: Literal["scripted", "mock", "openai", "openai-compatible", "anthropic", "gemini", "xai", "xai-chat"]
    name: Annotated[str, Meta(max_length=NAME_CHARS_MAX)] = ""
    account: Id | None = None
    models: tuple[ModelId, ...] | None = None
    scripts: Mapping[str, Any] = {}
    base_url: str = ""
    key_env: Variable | None = None
    key_file: Path | None = None
    input_media_types: Mapping[str, tuple[MediaType, ...]] = {}
    tools: bool = True
    structured_output: bool | None = None

    @property
    def vendor(self) -> Vendor | None:
        """Whose API it is; None for models that come with the program."""
        return vendor_of(self.kind)

    def faults(self) -> Iterator[Fault]:
        """Return what breaks its rules."""
        if (vendor := self.vendor) is not None:
            yield from self._api_faults(vendor)
            return
        for name in _ONLY_OF_APIS:
            if getattr(self, name) not in ("", None, {}):
                yield Fault(name, f"remove it: a provider of the kind {self.kind} asks no vendor")
        if self.kind == "scripted":
            yield from self._script_faults()
        elif self.scripts:
            yield Fault("scripts", f"remove it: a provider of the kind {self.kind} follows no scripts")

    def followed(self) -> Mapping[str, Script]:
        """The scripts by model name; those that come with the program unless others are given.

        Raises:
            InvalidScript: one of them cannot be followed.
        """
        return scripts(self.scripts) if self.scripts else ready.models()

    def address(self, vendor: Vendor) -> str:
        """The base URL, which ends in a slash."""
        return (self.base_url or vendor.base_url).rstrip("/") + "/"

    def _script_faults(self) -> Iterator[Fault]:
        try:
            followed = self.followed()
        except InvalidScript as error:
            yield Fault("scripts", str(error))
            return
        for number, model in enumerate(self.models or ()):
            if model not in followed:
                yield Fault(f"models[{number}]", "this model has no script; write one under providers.scripts")

    def _api_faults(self, vendor: Vendor) -> Iterator[Fault]:
        if self.scripts:
            yield Fault("scripts", f"remove it: a provider of the kind {self.kind} follows no scripts")
        if self.base_url:
            yield from _url_faults(self.base_url)
        elif not vendor.base_url:
            yield Fault("base_url", "is missing: give the address of the server, such as http://127.0.0.1:11434/v1/")
        if self.key_env is not None and self.key_file is not None:
            yield Fault("key_file", "remove it, or remove key_env: they name two keys")
        for model, kinds in self.input_media_types.items():
            yield from self._media_faults(vendor, model, kinds)
        if len(self.input_media_types) > MODELS_MAX:
            yield Fault("input_media_types", f"INVALID_CONTEXT_POLICY: at most {MODELS_MAX} models can be named")

    def _media_faults(self, vendor: Vendor, model: str, kinds: Sequence[str]) -> Iterator[Fault]:
        place = f"input_media_types.{model}"
        if self.models is not None and model not in self.models:
            yield Fault(place, "INVALID_CONTEXT_POLICY: this model is not among models")
        if len(kinds) != len({*kinds}) or len(kinds) > len(MEDIA_TYPES):
            yield Fault(place, "INVALID_CONTEXT_POLICY: name each media type once")
        if "application/pdf" in kinds and not vendor.documents:
            yield Fault(place, f"INVALID_CONTEXT_POLICY: {vendor.name} takes no PDF; remove application/pdf")


def vendor_of(kind: str) -> Vendor | None:
    """The vendor that *kind* stands for, if any."""
    known: Mapping[str, Vendor] = {name: vendor for name, vendor in VENDORS.items()}  # noqa: C416 - by plain text
    return known.get(kind)


def _url_faults(url: str) -> Iterator[Fault]:
    """What is wrong with the address of an API; no part of it is repeated."""
    try:
        parts = urlsplit(url)
        host, account, port = parts.hostname, parts.username or parts.password, parts.port
    except ValueError:
        host, account, port, parts = None, None, None, urlsplit("")
    plain = parts.scheme == "http" and host in LOOPBACK
    if not host or port == 0 or (parts.scheme != "https" and not plain):
        yield Fault("base_url", "INSECURE_TRANSPORT: write https://host/path/; http:// is for this machine only")
    if account or "?" in url or "#" in url:
        yield Fault("base_url", "INSECURE_TRANSPORT: must be an address alone: no account, no query, no fragment")
