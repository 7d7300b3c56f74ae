"""Where settings come from: the file, what it refers to, and the environment, in that order of growing weight."""

import re
import tomllib
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, cast

import anyio
import msgspec

from runstream.reading import Custom, Fault, Loose, read
from runstream.settings import CODES, Secret, Settings, SettingsError

PREFIX = "RUNSTREAM_"
NOT_SETTINGS = frozenset({"RUNSTREAM_CONFIG", "RUNSTREAM_TOKEN", "RUNSTREAM_URL"})
"""Which file to read, and what a client of a running host says."""
FILE_BYTES_MAX = 4_000_000

_HEADER = re.compile(r"\s*(\[\[?)\s*([A-Za-z0-9_.\s-]+?)\s*\]\]?\s*(?:#.*)?")
_MEMBER = re.compile(r"\s*([A-Za-z0-9_.-]+)\s*=")


class Places(NamedTuple):
    """The folders that defaults and short paths go by."""

    config: Path
    state: Path
    home: Path


class Told(NamedTuple):
    """Where each key was said: in which line of which file, or in which variable."""

    file: str
    lines: Mapping[str, int]
    variables: Mapping[str, str]


NOWHERE = Told("", {}, {})


def places(environ: Mapping[str, str], home: Path) -> Places:
    """The places of a user, as the XDG rules name them."""
    return Places(
        Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "runstream" / "runstream.toml",
        Path(environ.get("XDG_STATE_HOME") or home / ".local" / "state") / "runstream",
        home,
    )


async def read_settings(path: Path | None, environ: Mapping[str, str], home: Path) -> Settings:
    """Read the settings from *path*, or from where RUNSTREAM_CONFIG or the user's config folder have them, if anywhere.

    Raises:
        SettingsError: with every fault found.
    """
    where = places(environ, home)
    given = path or (Path(environ["RUNSTREAM_CONFIG"]) if environ.get("RUNSTREAM_CONFIG") else None)
    file = await anyio.Path(given or where.config).absolute()
    there = given is not None or await file.is_file()
    text = await _text(file) if there else ""
    document, named = merged(_parsed(text, file), environ)
    folder = Path(file.parent if there else await anyio.Path.cwd())
    faults = [fault async for fault in _fetched(document, folder, home)]
    return settings_of(document, where, folder, Told(str(file), lines_of(text), named), faults)


def settings_of(
    document: Mapping[str, Any], where: Places, folder: Path, told: Told = NOWHERE, found: Iterable[Fault] = ()
) -> Settings:
    """The settings that *document* states; short paths begin at *folder*, faults that were *found* before are told too.

    Raises:
        SettingsError: with every fault found.
    """
    custom: Custom = {
        Path: (lambda value: path_of(value, folder, where.home), "a path"),
        Secret: (Secret, "a text"),
    }
    settings, faults = read(Settings, {"state_dir": str(where.state), **document}, custom)
    faults = [*found, *faults]
    if settings is None or faults:
        raise SettingsError(tuple(_located(_coded(fault), told) for fault in faults))
    return settings


def _coded(fault: Fault) -> Fault:
    """The fault with the code that the protocol has for its section, if any."""
    code = CODES.get(fault.key.partition(".")[0])
    return fault._replace(why=f"{code}: {fault.why}") if code else fault


def merged(data: Mapping[str, Any], environ: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """The document with what the environment says laid over it, and the variables by the key they set."""
    document = {key: _copied(value) for key, value in data.items()}
    named: dict[str, str] = {}
    for variable in sorted(environ):
        if not variable.startswith(PREFIX) or variable in NOT_SETTINGS:
            continue
        *above, last = variable.removeprefix(PREFIX).lower().split("__")
        table: dict[str, Any] = document
        for part in above:
            if not isinstance(table.setdefault(part, {}), dict):
                table[part] = {}
            table = table[part]
        table[last] = Loose(environ[variable])
        named[".".join((*above, last))] = variable
    return document, named


def _copied(value: Any) -> Any:
    """*value*, whose tables may be written to."""
    return {key: _copied(one) for key, one in _table(value).items()} if isinstance(value, dict) else value


def _table(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return [*value] if isinstance(value, list) else []  # pyright: ignore[reportUnknownVariableType] - TOML


def lines_of(text: str) -> dict[str, int]:
    """The line of each key in a TOML *text*, as far as a glance tells."""
    lines: dict[str, int] = {}
    counts: dict[str, int] = {}
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.fullmatch(line):
            section = re.sub(r"\s", "", header[2])
            if header[1] == "[[":
                counts[section] = counts.get(section, -1) + 1
                section = f"{section}[{counts[section]}]"
            lines.setdefault(section, number)
        elif member := _MEMBER.match(line):
            lines.setdefault(".".join(one for one in (section, member[1]) if one), number)
    return lines


def path_of(value: str, folder: Path, home: Path) -> Path:
    """The path that *value* names, from *folder* on, or from the *home* folder after a tilde; raises `ValueError`."""
    if not value or "\0" in value:
        raise ValueError("no path")
    if value == "~" or value.startswith("~/"):
        return home / value[2:]
    return folder / value


def _located(fault: Fault, told: Told) -> Fault:
    """The fault with the variable or the line that it comes from."""
    key = fault.key
    while key:
        if key in told.variables:
            return fault._replace(why=f"{fault.why} (environment variable {told.variables[key]})")
        if key in told.lines:
            return fault._replace(why=f"{fault.why} ({told.file}, line {told.lines[key]})")
        key = key[: max(key.rfind("."), key.rfind("["), 0)]
    return fault


async def _fetched(document: dict[str, Any], folder: Path, home: Path) -> AsyncIterator[Fault]:
    """Put what files hold in the place of their names: passwords, and scripts."""
    redis = _table(document.get("redis"))
    for word in ("password", "sentinel_password"):
        if not isinstance(name := redis.get(f"{word}_file"), str):
            continue
        if word in redis:
            yield Fault(f"redis.{word}", f"remove it, or remove redis.{word}_file: they say the same")
        try:
            redis[word] = (await _content(name, folder, home)).decode().rstrip("\r\n")
        except (OSError, ValueError) as error:
            yield Fault(f"redis.{word}_file", f"cannot be read: {_said(error)}")
    providers: Any = document.get("providers")
    if isinstance(providers, Loose):
        with suppress(msgspec.DecodeError, RecursionError):
            document["providers"] = providers = msgspec.json.decode(str(providers))
    for number, provider in enumerate(map(_table, _list(providers))):
        if isinstance(name := provider.get("scripts"), str):
            try:
                provider["scripts"] = msgspec.json.decode(await _content(name, folder, home))
            except (OSError, ValueError, RecursionError) as error:
                yield Fault(f"providers[{number}].scripts", f"this file cannot be read: {_said(error)}")
                provider["scripts"] = {}


async def _content(name: str, folder: Path, home: Path) -> bytes:
    return await _bytes(anyio.Path(path_of(name, folder, home)))


def _said(error: Exception) -> str:
    """What went wrong, without a word of the file."""
    match error:
        case OSError(strerror=str(why)):
            return why
        case UnicodeDecodeError():
            return "it is not UTF-8 text"
        case msgspec.DecodeError():
            return f"it is not JSON ({error})"
        case _:
            return "it names no file" if isinstance(error, ValueError) else "it is nested too deeply"


async def _text(file: anyio.Path) -> str:
    try:
        return (await _bytes(file)).decode()
    except UnicodeDecodeError as error:
        raise SettingsError((Fault("", f"{file} is not UTF-8 text (byte {error.start}); save it as UTF-8"),)) from None
    except OSError as error:
        raise SettingsError(
            (Fault("", f"{file} cannot be read: {error.strerror}; name another with --config"),)
        ) from None


async def _bytes(file: anyio.Path) -> bytes:
    async with await file.open("rb") as opened:
        data = await opened.read(FILE_BYTES_MAX + 1)
    if len(data) > FILE_BYTES_MAX:
        raise OSError(0, f"it is larger than {FILE_BYTES_MAX} bytes")
    return data


def _parsed(text: str, file: anyio.Path) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise SettingsError((Fault("", f"{file} is not TOML: {error}"),)) from None
