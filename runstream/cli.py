"""The commands. Each reads its options, and lets an async function elsewhere do the work."""

import os
import shlex
import shutil
import signal
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import anyio
import click
import msgspec
from msgspec.structs import replace

import runstream
from api.grants import ApplicationToolGrant, RetrievalGrant
from runstream import checking, instances, logs, mending, neighbour, running, serving, showing, sidecar, tokens
from runstream.client import Remote, remote_events
from runstream.cluster import NODES_MAX
from runstream.cluster import cluster as run_cluster
from runstream.demo import demo as demonstrate
from runstream.demo_approval import Answer
from runstream.demo_approval import demo_approval as demonstrate_approval
from runstream.ending import FAILED, Ending, ending_of
from runstream.host import Host
from runstream.models import with_named
from runstream.output import Output
from runstream.provider_settings import vendor_of
from runstream.settings import LogSettings, Settings, SettingsError
from runstream.sources import read_settings
from runstream.tables import neutral

F = TypeVar("F", bound=Callable[..., Any])

INPUT_BYTES_MAX = 4_000_000
_FILE = click.Path(dir_okay=False, path_type=Path)
_FOLDER = click.Path(file_okay=False, path_type=Path)


def with_config(command: F) -> F:
    """Give *command* the options that say where settings and state lie."""
    command = click.option("--config", type=_FILE, help="Settings file (else RUNSTREAM_CONFIG, else the user's own).")(
        command
    )
    return click.option("--state-dir", type=_FOLDER, help="State folder, in place of the settings' one.")(command)


@click.group()
@click.version_option(version("runstream"), package_name="runstream")
def cli() -> None:
    """A host for agent runs on Redis Streams."""


@cli.command()
@with_config
def serve(config: Path | None, state_dir: Path | None) -> None:
    """Serve clients until told to end (SIGTERM drains)."""

    async def work() -> None:
        settings = await _settings(config, state_dir)
        await logs.begin(settings.log, sys.stderr)
        await serving.serve_host(settings, lambda listening: click.echo(f"listening on {listening.url}"))

    _ended(work, mending.SERVING)


@cli.command()
@click.option("--stdio", is_flag=True, help="One envelope a line, on standard input and output.")
@click.option("--socket", "path", type=click.Path(path_type=Path), help="The same on a Unix socket at this path.")
@with_config
def host(path: Path | None, config: Path | None, state_dir: Path | None, *, stdio: bool) -> None:
    """Serve the Agent Host protocol to programs on this machine, as [host.principal] of the settings."""
    if stdio == (path is not None):
        raise click.UsageError("give --stdio or --socket PATH")

    async def work() -> None:
        settings = await _settings(config, state_dir)
        await logs.begin(settings.log, sys.stderr)
        settings = await neighbour.joined(settings)
        if path is None:
            await sidecar.serve_stdio(settings)
        else:
            await sidecar.serve_socket(settings, path, lambda at: click.echo(f"listening on unix:{at}"))

    _ended(work, mending.SOCKET)


@cli.command()
@click.argument("prompt", required=False)
@click.option("--file", type=_FILE, help="Read the prompt from a file.")
@click.option("--provider", help="An instance of the settings, or a vendor: openai, anthropic, gemini, xai. [scripted]")
@click.option("--base-url", default="", help="A server that speaks OpenAI's chat completions, asked in place of them.")
@click.option("--model", help="What the provider calls its model; a vendor needs it. [demo]")
@click.option("--max-steps", type=click.IntRange(1, 64), help="How many model steps the run may take.")
@click.option("--schema", type=_FILE, help="JSON Schema file that the answer must meet.")
@click.option("--key", help="Idempotency key: a second run with it replays the first.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON instead of the text.")
@click.option("--events", "as_events", is_flag=True, help="Print each event as a line of JSON.")
@click.option("--url", envvar="RUNSTREAM_URL", help="Send the run to a host that runs elsewhere.")
@click.option("--token", envvar="RUNSTREAM_TOKEN", help="Token for --url; better given as RUNSTREAM_TOKEN.")
@with_config
def run(prompt: str | None, file: Path | None, url: str | None, token: str | None, **options: Any) -> None:
    """Run a prompt (a text, or - for standard input) and print the answer as it comes."""
    if options["as_json"] and options["as_events"]:
        raise click.UsageError("--json and --events exclude each other")
    if (prompt is None) == (file is None):
        raise click.UsageError("give a prompt, - for standard input, or --file")
    if url and not token:
        raise click.UsageError("--url needs --token or RUNSTREAM_TOKEN")
    options = _addressed(options, local=not url)
    show: running.Show = "json" if options["as_json"] else "events" if options["as_events"] else "text"
    mends: dict[str, str] = {}

    async def work() -> None:
        document = await _document(prompt, file, options)
        if url and token:
            mends.update(mending.remote(options["provider"]))
            await _run(remote_events(Remote(url, token), document), show)
            return
        settings = await _settings(options["config"], options["state_dir"])
        settings = with_named(settings, options["provider"], options["base_url"])
        mends.update(mending.asking(settings, options["provider"], options["base_url"]))
        await logs.begin(replace(settings.log, level="error"), sys.stderr)
        async with runstream.open(await neighbour.joined(settings)) as host:
            await _run(running.local_events(host, document), show)

    _ended(work, mends)


@cli.command()
@click.argument("run_id", metavar="RUN")
@click.option("--json", "as_json", is_flag=True, help="One JSON event per line.")
@click.option("--follow", is_flag=True, help="Go on until the run ends.")
@with_config
def events(run_id: str, *, as_json: bool, follow: bool, config: Path | None, state_dir: Path | None) -> None:
    """Show the events of a run as clients see them."""
    _looked(partial(showing.show_events, run_id=run_id, as_json=as_json, follow=follow), config, state_dir)


@cli.command()
@click.argument("run_id", metavar="RUN")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
@click.option("--follow", is_flag=True, help="Go on until the run ends.")
@with_config
def log(run_id: str, *, as_json: bool, follow: bool, config: Path | None, state_dir: Path | None) -> None:
    """Show the log of a run: what its state is made of."""
    _looked(partial(showing.show_log, run_id=run_id, as_json=as_json, follow=follow), config, state_dir)


@cli.command()
@with_config
def check(config: Path | None, state_dir: Path | None) -> None:
    """Say whether a host could start, and what to change where it could not."""

    async def work() -> int:
        try:
            settings = await _settings(config, state_dir)
        except SettingsError as error:
            for line in str(error).splitlines():
                click.echo(neutral(f"{'error':<8} {'settings':<10} {line}", keep=""))
            return FAILED
        await logs.begin(LogSettings(level="error"), sys.stderr)
        found = await checking.check(settings)
        for verdict in found:
            click.echo(neutral(verdict.line, keep=""))
        return FAILED if any(verdict.level == "error" for verdict in found) else 0

    _ended(work)


@cli.command()
@click.argument("instance", required=False)
@click.option("--base-url", default="", help="A server that speaks OpenAI's chat completions, asked in place of them.")
@click.option("--json", "as_json", is_flag=True, help="What `GET /v1/providers` answers.")
@with_config
def providers(
    instance: str | None, base_url: str, *, as_json: bool, config: Path | None, state_dir: Path | None
) -> None:
    """Ask the providers how they stand; with an INSTANCE (or a vendor), which models it has."""
    name = "openai-compatible" if base_url else instance
    mends: dict[str, str] = {}

    async def work() -> None:
        settings = with_named(await _settings(config, state_dir), name or "", base_url)
        mends.update(mending.asking(settings, name or "", base_url))
        await logs.begin(LogSettings(level="error"), sys.stderr)
        await instances.show(settings, name, Output(), as_json=as_json)

    _ended(work, mends)


@cli.group()
def token() -> None:
    """Make tokens that let clients in."""


@token.command("new")
@click.option("--subject", required=True, help="Who the token stands for: owner of runs, unit of fairness.")
@click.option(
    "--provider", "providers", multiple=True, help="Instance that runs may use. [scripted, but none for metrics]"
)
@click.option("--tool", "tools", multiple=True, help="Host tool that runs may name.")
@click.option("--approve-tool", "approve_tools", multiple=True, help="Tool whose calls the token may decide.")
@click.option("--application-tool", "application_tools", multiple=True, help="Tool the client executes itself.")
@click.option(
    "--job", "jobs", multiple=True, type=click.Choice(["submit", "read", "cancel"]), help="What it may do with jobs."
)
@click.option(
    "--session",
    "sessions",
    multiple=True,
    type=click.Choice(["create", "read", "continue", "delete"]),
    help="What it may do with conversations.",
)
@click.option("--search", multiple=True, metavar="CORPUS", help="Corpus the token may search.")
@click.option("--index", multiple=True, metavar="CORPUS", help="Corpus the token may add to.")
@click.option("--delete", multiple=True, metavar="CORPUS", help="Corpus the token may delete from.")
@click.option("--manage-providers", is_flag=True, help="The token sees every provider instance.")
@click.option("--read-metrics", is_flag=True, help="The token may read GET /metrics.")
def token_new(application_tools: tuple[str, ...], **policy: Any) -> None:
    """Make a token: its text goes to stderr, once; the settings entry that lets it in, to stdout."""

    async def work() -> None:
        output = Output()
        grants = {name: policy.pop(name) for name in ("search", "index", "delete")}
        if not (policy["providers"] or policy["read_metrics"] or policy["manage_providers"]):
            policy["providers"] = ("scripted",)
        tools = tuple(ApplicationToolGrant(name) for name in application_tools)
        made = await tokens.fresh()
        entry = tokens.entry_for(made, application_tools=tools, retrieval=RetrievalGrant(**grants), **policy)
        # Apart, so that the entry can be appended to the settings file without the token.
        click.echo("The token, shown this once, for the client:", err=True)
        click.echo(f"\n  {made}\n", err=True)
        click.echo("The entry that lets it in, for the settings file:", err=True)
        await output.line(f"\n{tokens.toml(entry)}")

    _ended(work)


@cli.command()
@click.option("--input", "source", type=_FILE, required=True, help="Text file to send.")
@click.option("--state-dir", type=_FOLDER, help="Where the history stays; a new temporary folder unless given.")
def demo(source: Path, state_dir: Path | None) -> None:
    """Start a private Redis and a host, send a text file as a run, and show what happens."""

    async def work() -> None:
        await logs.begin(LogSettings(level="error"), sys.stderr)
        text = await _text_of(source)
        await demonstrate(text, await _absolute(state_dir), Output(), _program())

    _ended(work)


@cli.command("demo-approval")
@click.option("--yes", "answer", flag_value="approve", help="Approve the call instead of asking.")
@click.option("--no", "answer", flag_value="deny", help="Deny it.")
@click.option("--state-dir", type=_FOLDER, help="Where the history stays; a new temporary folder unless given.")
def demo_approval(answer: Answer | None, state_dir: Path | None) -> None:
    """Start two hosts on a private Redis, and decide through one about a tool call of a run on the other."""

    async def work() -> None:
        await logs.begin(LogSettings(level="error"), sys.stderr)
        await demonstrate_approval(answer, await _absolute(state_dir), Output(), _program())

    _ended(work)


@cli.command()
@click.option("--nodes", type=click.IntRange(1, NODES_MAX), default=3, show_default=True, help="How many.")
@click.option("--port", type=click.IntRange(1, 65_000), default=7440, show_default=True, help="Nodes follow after it.")
@click.option("--state-dir", type=_FOLDER, help="Where the history stays; a new temporary folder unless given.")
@click.option("--restart/--no-restart", "restarts", default=True, help="Whether a node that ends is started again.")
def cluster(nodes: int, port: int, state_dir: Path | None, *, restarts: bool) -> None:
    """Start several nodes on a private Redis, for trying things: kill one and see."""

    async def work() -> None:
        await logs.begin(LogSettings(level="error"), sys.stderr)
        await run_cluster(nodes, port, await _absolute(state_dir), Output(), restarts=restarts)

    _ended(work)


def _looked(look: Callable[[Host, Output], Awaitable[None]], config: Path | None, state_dir: Path | None) -> NoReturn:
    """Take a *look* at a run, beside a running host or alone, and end the process as it went."""
    mends: dict[str, str] = {}

    async def work() -> None:
        settings = await _settings(config, state_dir)
        mends.update(mending.looking(settings))
        await logs.begin(replace(settings.log, level="error"), sys.stderr)
        async with runstream.open(await neighbour.joined(settings)) as host:
            await look(host, Output())

    _ended(work, mends)


def _ended(work: Callable[[], Awaitable[int | None]], mends: mending.Mends | None = None) -> NoReturn:
    """Do *work*, and end the process as it went; *mends* are read after it."""
    try:
        sys.exit(anyio.run(work) or 0)
    except (Exception, KeyboardInterrupt) as error:
        ending = ending_of(error)
        if ending is None:
            raise
        _say(ending._replace(lines=mending.mended(ending.lines, mends or {})))


def _say(ending: Ending) -> NoReturn:
    for line in ending.lines:
        click.echo(line, err=True)
    try:
        click.echo(nl=False)
    except OSError:
        # Nobody reads any more, or there is no room; without this the interpreter would complain when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(ending.code)


async def _run(coming: running.Events, show: running.Show) -> None:
    """Show a run; Ctrl-C cancels it."""
    run_id = ""

    def started(told: str) -> None:
        nonlocal run_id
        run_id = told
        if show == "text" and sys.stderr.isatty():
            click.echo(f"run {told}", err=True)  # else nobody who reads the answer could ask for its run again

    scope = anyio.CancelScope()
    async with anyio.create_task_group() as tasks:

        async def interrupted() -> None:
            with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
                async for _ in signals:
                    scope.cancel()
                    return

        tasks.start_soon(interrupted)
        with scope:
            await running.run(coming, Output(), show, started)
        tasks.cancel_scope.cancel()
    if scope.cancelled_caught:
        raise running.RunFailed(f"CANCELLED: you stopped the run {run_id}".rstrip())


def _addressed(options: dict[str, Any], *, local: bool) -> dict[str, Any]:
    """The options with a provider and a model: the scripted demo, unless something else is named."""
    base_url = options["base_url"]
    if base_url and (options["provider"] or not local):
        raise click.UsageError("--base-url excludes --provider and --url")
    provider = options["provider"] or ("openai-compatible" if base_url else "scripted")
    if options["model"] is None and vendor_of(provider) is not None:
        name = f"--base-url {base_url}" if base_url else provider
        raise click.UsageError(f"give --model; `runstream providers {name}` tells which there are")
    return options | {"provider": provider, "model": options["model"] or "demo"}


async def _settings(config: Path | None, state_dir: Path | None) -> Settings:
    settings = await read_settings(config, os.environ, Path.home())
    folder = await _absolute(state_dir)
    return replace(settings, state_dir=folder) if folder else settings


async def _absolute(folder: Path | None) -> Path | None:
    return Path(await anyio.Path(folder).absolute()) if folder else None


async def _document(prompt: str | None, file: Path | None, options: dict[str, Any]) -> dict[str, Any]:
    text = await _text_of(file) if file else await _stdin() if prompt == "-" else prompt or ""
    schema: Any = None
    if options["schema"]:
        try:
            schema = msgspec.json.decode(await _text_of(options["schema"]))
        except (msgspec.DecodeError, RecursionError) as error:
            raise click.UsageError(f"--schema: {options['schema']} is not JSON: {error}") from None
    return running.document_of(
        text,
        provider=options["provider"],
        model=options["model"],
        max_steps=options["max_steps"],
        schema=schema,
        key=options["key"],
    )


async def _stdin() -> str:
    return _decoded(await anyio.to_thread.run_sync(sys.stdin.buffer.read, INPUT_BYTES_MAX + 1), "standard input")


async def _text_of(file: Path) -> str:
    try:
        async with await anyio.open_file(file, "rb") as opened:
            return _decoded(await opened.read(INPUT_BYTES_MAX + 1), str(file))
    except OSError as error:
        raise click.UsageError(f"{file} cannot be read: {error.strerror}") from None


def _decoded(data: bytes, source: str) -> str:
    if len(data) > INPUT_BYTES_MAX:
        raise click.UsageError(f"{source} holds more than {INPUT_BYTES_MAX} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{source} is not UTF-8 text (byte {error.start})") from None


def _program() -> str:
    """The words that call this program again from the same folder."""
    script = Path(sys.executable).with_name("runstream")
    if shutil.which("runstream") == str(script):
        return "runstream"
    words = [os.path.relpath(script)] if script.exists() else [sys.executable, "-m", "runstream"]
    return shlex.join(words)
