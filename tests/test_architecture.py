"""The laws of the tree: which way imports point, which modules are pure, and what no file may hold."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EVERYTHING = ("actors", "api", "eventstore", "projections", "providers", "runstream")

MAY_IMPORT = {
    "eventstore": (),
    "actors": ("eventstore",),
    # Events carry a call and its usage, whose types the ports declare.
    "projections": ("eventstore", "actors.events", "actors.errors", "actors.ports.ToolCall", "actors.ports.Usage"),
    "providers": ("actors.ports", "actors.errors"),
    "api": ("actors", "projections", "eventstore"),
    "runstream": EVERYTHING,
}
PURE = (
    "actors/bounds.py",
    "actors/budgets.py",
    "actors/by_hand.py",
    "actors/calls.py",
    "actors/codec.py",
    "actors/companions.py",
    "actors/context.py",
    "actors/decider.py",
    "actors/errors.py",
    "actors/events.py",
    "actors/fingerprint.py",
    "actors/hidden.py",
    "actors/host_input.py",
    "actors/host_key.py",
    "actors/ids.py",
    "actors/jsontext.py",
    "actors/plan.py",
    "actors/prompt.py",
    "actors/request.py",
    "actors/request_parts.py",
    "actors/request_shape.py",
    "actors/revisions.py",
    "actors/run.py",
    "actors/schema.py",
    "actors/session.py",
    "actors/shapes.py",
    "actors/transcript.py",
    "actors/upkeep.py",
    "actors/usage.py",
    "actors/values.py",
    "api/bodies.py",
    "api/diagnostics.py",
    "api/grants.py",
    "api/host/bodies.py",
    "api/host/encoding.py",
    "api/host/envelope.py",
    "api/host/failures.py",
    "api/host/names.py",
    "api/host/requests.py",
    "api/pipeline.py",
    "api/problems.py",
    "api/wire/readiness.py",
    "eventstore/appends.py",
    "eventstore/keys.py",
    "eventstore/leases.py",
    "projections/host_feed.py",
    "projections/host_result.py",
    "projections/inbox.py",
    "projections/runs.py",
    "projections/session_view.py",
    "projections/usage.py",
    "projections/views.py",
    "projections/wire_feed.py",
    "providers/alternating.py",
    "providers/anthropic.py",
    "providers/anthropic_answer.py",
    "providers/anthropic_block.py",
    "providers/catalog.py",
    "providers/chat_answer.py",
    "providers/chat_completions.py",
    "providers/codec.py",
    "providers/event_stream.py",
    "providers/failures.py",
    "providers/finish.py",
    "providers/gemini.py",
    "providers/gemini_answer.py",
    "providers/listing.py",
    "providers/openai_answer.py",
    "providers/openai_responses.py",
    "providers/openai_usage.py",
    "providers/probe.py",
    "providers/ready.py",
    "providers/retry.py",
    "providers/script.py",
    "providers/speech.py",
    "providers/vendor.py",
    "providers/vendor_json.py",
    "runstream/sections.py",
    "runstream/terms.py",
)
# fmt: off
WORLDLY_MODULES = (
    "aiohttp", "anyio", "asyncio", "fakeredis", "hiredis", "httpx", "httpx2", "io", "litestar", "logging",
    "multiprocessing", "os", "pathlib", "random", "redis", "requests", "secrets", "shutil", "signal", "socket",
    "ssl", "subprocess", "sys", "tempfile", "threading", "time", "urllib.request", "uvicorn",
)
# fmt: on
CLIENT = "clients/python/runstream_client"
DRIVERS = ("sync_driver.py", "async_driver.py", "client.py", "async_client.py", "async_groups.py")
"""What of the client may wait; it knows sockets through these alone."""
WORLDLY_METHODS = ("now", "utcnow", "today", "uuid1", "uuid4", "urandom", "token_hex")
WORLDLY_FUNCTIONS = (*WORLDLY_METHODS, "open", "print", "input")
NAMES_WITHOUT_MEANING = frozenset({"utils", "util", "common", "base", "manager", "helpers", "misc"})

# A letter in brackets keeps a pattern from matching itself.
FORBIDDEN_TEXT = {
    "the address of a package index": rb"py[p]i\.org|python[h]osted|registry\.[n]pmjs|--(?:extra-)?index-url[ =]\S",
    "an absolute path of one machine": rb"(?<![\w.:])/(?:root|work|Users|opt/wheels)/\w|/home/(?!runstream)\w",
}
NOT_OURS = frozenset({"dist", "htmlcov", "__pycache__", "node_modules"})
OURS_THOUGH_HIDDEN = frozenset({".ci", ".gitignore", ".gitattributes"})


def sources(*packages: str) -> list[Path]:
    return sorted(path for package in packages for path in (ROOT / package).rglob("*.py"))


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """Each name that *path* imports, in full, with its line; those for type checkers too."""
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*above, *([node.module] if node.module else ())))
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


def within(name: str, allowed: tuple[str, ...]) -> bool:
    return any(name == each or name.startswith(f"{each}.") for each in allowed)


def worldly(path: Path) -> Iterator[str]:
    """What *path* has that waits or touches the world, each as a place and a reason."""
    for line, name in imported(path):
        if within(name, WORLDLY_MODULES):
            yield f"{shown(path)}:{line} imports {name}"
    for node in ast.walk(parsed(path)):
        match node:
            case ast.AsyncFunctionDef(name=name) | ast.Global(names=[name, *_]):
                yield f"{shown(path)}:{node.lineno} {type(node).__name__} {name}"
            case ast.Await() | ast.AsyncFor() | ast.AsyncWith():
                yield f"{shown(path)}:{node.lineno} waits"
            case ast.Call(func=ast.Name(id=name)) if name in WORLDLY_FUNCTIONS:
                yield f"{shown(path)}:{node.lineno} calls {name}"
            case ast.Call(func=ast.Attribute(attr=name)) if name in WORLDLY_METHODS:
                yield f"{shown(path)}:{node.lineno} calls {name}"
            case _:
                pass


def files() -> Iterator[Path]:
    """Every file that belongs to the repository, whether or not it is committed yet."""
    folders = [ROOT]
    while folders:
        for path in sorted(folders.pop().iterdir()):
            if path.name in NOT_OURS or (path.name.startswith(".") and path.name not in OURS_THOUGH_HIDDEN):
                continue
            if path.is_dir():
                folders.append(path)
            else:
                yield path


@pytest.mark.repo
@pytest.mark.parametrize("package", EVERYTHING)
def test_imports_point_one_way(package: str) -> None:
    allowed = (package, *MAY_IMPORT[package])
    wrong = [
        f"{shown(path)}:{line} imports {name}"
        for path in sources(package)
        for line, name in imported(path)
        if within(name, (*EVERYTHING, "tests", "bench")) and not within(name, allowed)
    ]
    assert wrong == []


@pytest.mark.repo
@pytest.mark.parametrize("name", PURE)
def test_a_pure_module_neither_waits_nor_touches_the_world(name: str) -> None:
    path = ROOT / name
    found = list(worldly(path)) if path.exists() else []
    assert found == []


@pytest.mark.repo
def test_the_client_knows_nothing_of_the_host_and_only_the_program_knows_the_client() -> None:
    ours = (*EVERYTHING, "tests", "bench")
    wrong = [
        f"{shown(path)}:{line} imports {name}"
        for path in sources("clients/python")
        for line, name in imported(path)
        if within(name, ours) and not shown(path).startswith("clients/python/tests")
    ]
    wrong += [
        f"{shown(path)}:{line} imports {name}"
        for package in EVERYTHING
        for path in sources(package)
        for line, name in imported(path)
        if within(name, ("runstream_client",)) and package != "runstream"
    ]
    assert wrong == []


@pytest.mark.repo
def test_the_clients_rules_do_not_wait_and_only_its_drivers_do() -> None:
    modules = [path for path in (ROOT / CLIENT).glob("*.py") if path.name not in DRIVERS]
    allowed = ("imports ssl", "imports logging", "imports random")  # a type, a log line, and chance that is handed in
    assert len(modules) > len(DRIVERS)
    assert [found for path in modules for found in worldly(path) if not any(word in found for word in allowed)] == []


@pytest.mark.repo
def test_every_module_opens_with_a_sentence() -> None:
    silent = [
        shown(path)
        for path in sources(*EVERYTHING, "tests", "bench", "clients/python")
        if path.read_bytes().strip() and not ast.get_docstring(parsed(path))
    ]
    assert silent == []


@pytest.mark.repo
def test_no_module_is_named_for_having_no_place() -> None:
    assert [shown(path) for path in sources(*EVERYTHING, "clients/python") if path.stem in NAMES_WITHOUT_MEANING] == []


@pytest.mark.repo
def test_no_file_names_a_package_index_or_a_path_of_one_machine() -> None:
    wrong = [
        f"{shown(path)}: {what}: {found.group().decode()}"
        for path in files()
        for what, pattern in FORBIDDEN_TEXT.items()
        for found in [re.search(pattern, path.read_bytes())]
        if found
    ]
    assert wrong == []


@pytest.mark.repo
def test_every_pin_has_its_hash() -> None:
    for path in sorted((ROOT / "requirements").glob("*.txt")):
        pins = re.findall(r"^[a-z0-9][^\s#]*==\S+.*$", path.read_text(encoding="utf-8"), re.MULTILINE)
        assert pins, shown(path)
        assert [pin for pin in pins if not pin.endswith("\\")] == [], shown(path)
        needs_redis = path.name != "client.txt"
        assert not needs_redis or any(pin.startswith("async-timeout==") for pin in pins), (
            f"{shown(path)}: Python 3.11.2 needs async-timeout"
        )


def test_the_laws_are_seen_to_be_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that cannot fail proves nothing: each law is broken once, in a tree made for it."""
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    module = tmp_path / "eventstore" / "deep" / "bad.py"
    module.parent.mkdir(parents=True)
    module.write_text(
        "from __future__ import annotations\nimport os.path\nfrom ...actors import run\nfrom .. import store\n"
        "async def wait():\n    await x\ndef stamp():\n    return datetime.now()\n"
    )
    assert [name for _, name in imported(module)] == [
        "__future__.annotations",
        "os.path",
        "actors.run",
        "eventstore.store",
    ]
    assert {line.split(" ", 1)[1] for line in worldly(module)} == {
        "imports os.path",
        "AsyncFunctionDef wait",
        "waits",
        "calls now",
    }
