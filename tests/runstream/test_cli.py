"""The command line: as a function where it only reads options, and as the real program."""

import errno
import io
import json
import logging
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from click.testing import CliRunner, Result
from runstream_client import ClientError
from typing_extensions import override

from actors.errors import Refused
from eventstore.link import ReplyError
from eventstore.store import Unavailable
from runstream import logs, running
from runstream.cli import cli
from runstream.client import Remote, remote_events
from runstream.ending import ending_of
from runstream.output import Output
from runstream.settings import LogSettings
from runstream.tables import event_line, neutral, problem_line

pytestmark = pytest.mark.anyio

DEADLINE_S = 60.0
ENDED = "(ended)"
ROOT = Path(__file__).parent.parent.parent


class Place(NamedTuple):
    """A settings file with a token that opens it."""

    folder: Path
    config: Path
    token: str

    @property
    def environ(self) -> dict[str, str]:
        given = {name: value for name, value in os.environ.items() if not name.startswith("RUNSTREAM_")}
        return given | {"HOME": str(self.folder), "RUNSTREAM_CONFIG": str(self.config), "PYTHONUNBUFFERED": "1"}


class Served(NamedTuple):
    place: Place
    url: str


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return new_place(tmp_path_factory.mktemp("place"))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    place = new_place(tmp_path_factory.mktemp("served"))
    with started(place, "serve", "--config", str(place.config)) as host:
        yield Served(place, host.line_with("listening on http").split()[-1])
        host.process.terminate()
        assert host.ended() == 0


def new_place(folder: Path) -> Place:
    made = CliRunner().invoke(cli, ["token", "new", "--subject", "alice"])
    config = folder / "runstream.toml"
    config.write_text(f'state_dir = "state"\n[listen]\nport = 0\n[node]\ndrain_s = 0.2\n{made.stdout}')
    found = re.search(r"^  (\S{43})$", made.stderr, re.MULTILINE)
    assert found is not None
    return Place(folder, config, found[1])


def invoke(*words: str, environ: Mapping[str, str | None] | None = None, text: str | None = None) -> Result:
    cleared = {name: None for name in os.environ if name.startswith("RUNSTREAM_")}
    return CliRunner().invoke(cli, words, env={**cleared, **(environ or {})}, input=text)


def program(
    place: Place, *words: str, text: str = "", environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "runstream", *words]
    return subprocess.run(
        command, env=place.environ | dict(environ or {}), input=text, capture_output=True, text=True, timeout=DEADLINE_S,
        check=False,
    )  # fmt: skip


class Started:
    """A program that runs beside the test; its lines are read as they come."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: queue.Queue[str] = queue.Queue()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line.rstrip("\n"))
        self.lines.put(ENDED)

    def line_with(self, wanted: str) -> str:
        """The first line that holds *wanted*, before the deadline and the end."""
        until = time.monotonic() + DEADLINE_S
        seen: list[str] = []
        while ENDED not in seen:
            seen.append(self.lines.get(timeout=max(0.0, until - time.monotonic())))
            if wanted in seen[-1]:
                return seen[-1]
        raise AssertionError(f"{wanted} was never seen, but: {seen}")

    def ended(self) -> int:
        """Wait for the end, and for the last line."""
        code = self.process.wait(DEADLINE_S)
        self.reader.join(DEADLINE_S)
        return code


@contextmanager
def started(place: Place, *words: str, environ: Mapping[str, str] | None = None) -> Iterator[Started]:
    process = subprocess.Popen(
        [sys.executable, "-m", "runstream", *words],
        env=place.environ | dict(environ or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with process:
        try:
            yield Started(process)
        finally:
            process.kill()


def remote(served: Served) -> dict[str, str]:
    return {"RUNSTREAM_URL": served.url, "RUNSTREAM_TOKEN": served.place.token}


# Options.


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["run"], "give a prompt"),
        (["run", "x", "--file", "y"], "give a prompt"),
        (["run", "x", "--json", "--events"], "exclude each other"),
        (["run", "x", "--url", "http://127.0.0.1:1"], "needs --token"),
        (["run", "x", "--max-steps", "0"], "max-steps"),
        (["run", "--file", "none.txt"], "cannot be read"),
        (["run", "x", "--schema", "none.json"], "cannot be read"),
        (["run", "x", "--base-url", "http://127.0.0.1:1"], "`runstream providers --base-url http://127.0.0.1:1` tells"),
        (["run", "x", "--provider", "openai"], "`runstream providers openai` tells"),
        (["host"], "--stdio or --socket"),
        (["host", "--stdio", "--socket", "x"], "--stdio or --socket"),
        (["host", "--stdio", "--config", "none.toml"], "cannot be read"),
        (["events"], "RUN"),
        (["token", "new"], "--subject"),
        (["token", "new", "--subject", ""], "1 to 128 characters"),
        (["nonsense"], "No such command"),
        (["check", "--nonsense"], "No such option"),
        (["demo", "--input", "none.txt"], "cannot be read"),
        (["serve", "--config", "none.toml"], "cannot be read"),
        (["run", "x", "--config", "none.toml"], "cannot be read"),
    ],
)
def test_a_command_that_cannot_be_used_ends_with_2_and_says_why(words: list[str], says: str) -> None:
    result = invoke(*words)
    assert result.exit_code == 2
    assert says in result.stderr
    assert "Traceback" not in result.stderr


def test_input_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff")
    (tmp_path / "large").write_bytes(b" " * 4_000_001)
    (tmp_path / "schema").write_text("{")
    assert "not UTF-8" in invoke("run", "--file", str(tmp_path / "bytes")).stderr
    assert "more than" in invoke("run", "--file", str(tmp_path / "large")).stderr
    assert "not JSON" in invoke("run", "x", "--schema", str(tmp_path / "schema")).stderr


def test_a_host_without_a_token_refuses_to_serve_and_says_how_to_make_one(tmp_path: Path) -> None:
    result = invoke("serve", "--state-dir", str(tmp_path), environ={"XDG_CONFIG_HOME": str(tmp_path)})
    assert result.exit_code == 2
    assert "runstream token new" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_check_tells_every_fault_of_the_settings_and_ends_with_1() -> None:
    result = invoke("check", environ={"RUNSTREAM_PROFILE": "x", "RUNSTREAM_LOG__LEVEL": "y"})
    assert result.exit_code == 1
    assert "RUNSTREAM_PROFILE" in result.stdout
    assert "RUNSTREAM_LOG__LEVEL" in result.stdout


def test_check_of_a_host_that_could_start_ends_with_0(tmp_path: Path) -> None:
    result = invoke("check", environ={"RUNSTREAM_PROFILE": "memory", "XDG_CONFIG_HOME": str(tmp_path)})
    assert result.exit_code == 0, result.stdout
    assert "nothing survives" in result.stdout


def test_a_provider_that_tells_of_no_models_says_why_and_what_to_change() -> None:
    result = invoke("providers", "openai", environ={"OPENAI_API_KEY": None})
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "AUTH_REQUIRED: No credential is configured. -> put it into the variable OPENAI_API_KEY\n"


def test_a_new_token_goes_to_stderr_and_its_entry_alone_to_stdout() -> None:
    result = invoke("token", "new", "--subject", "alice", "--provider", "a", "--application-tool", "t", "--search", "c")
    assert result.exit_code == 0
    assert result.stdout.startswith("\n[[tokens]]\ndigest = ")
    assert 'providers = ["a"]' in result.stdout
    assert 'retrieval = { search = ["c"] }' in result.stdout
    found = re.search(r"^  (\S{43})$", result.stderr, re.MULTILINE)
    assert found is not None
    assert found[1] not in result.stdout


# The real program.


def test_a_run_here_prints_its_answer_and_its_history_can_be_read_again(place: Place) -> None:
    ran = program(place, "run", "-", "--model", "echo", "--events", text="one two three")
    assert ran.returncode == 0, ran.stderr
    events = [json.loads(line) for line in ran.stdout.splitlines()]
    run_id = events[0]["runId"]
    assert [event["sequence"] for event in events] == list(range(1, len(events) + 1))
    assert events[-1]["result"]["text"] == "one two three"

    again = program(place, "events", run_id, "--json")
    assert again.stdout == ran.stdout
    table = program(place, "events", run_id.upper(), "--follow").stdout
    assert len(table.splitlines()) == len(events) + 1
    log = [json.loads(line) for line in program(place, "log", run_id, "--json").stdout.splitlines()]
    assert [one["version"] for one in log] == list(range(1, len(log) + 1))
    assert log[0]["event"]["type"] == "run.accepted"
    assert log[-1]["feedHead"] == len(events)


def test_a_run_shows_text_or_its_result(place: Place, tmp_path: Path) -> None:
    (tmp_path / "prompt").write_text("some words")
    shown = program(place, "run", "--file", str(tmp_path / "prompt"), "--model", "echo")
    assert (shown.returncode, shown.stdout, shown.stderr) == (0, "some words\n", "")
    (tmp_path / "schema").write_text('{"type": "object", "required": ["ok"]}')
    asked = ["--json", "--schema", str(tmp_path / "schema"), "--key", "k", "--max-steps", "2"]
    result = program(place, "run", "x", "--model", "json-good", *asked)
    assert json.loads(result.stdout)["output"] == {"ok": True}
    assert program(place, "run", "x", "--model", "json-good", *asked).stdout == result.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["run", "x", "--model", "fail-auth"], ""),
        (["run", "x", "--model", "fail-rate-limited"], "RATE_LIMITED"),
        (["run", "x", "--provider", "none"], "-> `runstream providers` tells which there are"),
        (["run", "", "--model", "echo"], "INVALID_REQUEST"),
        (["events", "none"], "INVALID_REQUEST"),
        (["log", "00000000-0000-4000-8000-000000000000"], "state; --state-dir or --config names another place"),
    ],
)
def test_what_fails_ends_with_1_and_one_line(place: Place, words: list[str], says: str) -> None:
    ended = program(place, *words)
    assert ended.returncode == 1
    assert ended.stdout.strip() == "" or words[0] == "events"
    assert says in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_a_run_on_another_host_streams_over_http(served: Served) -> None:
    ran = program(served.place, "run", "hello", "--model", "echo", environ=remote(served))
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "hello\n", "")
    denied = program(served.place, "run", "hello", "--provider", "mock", environ=remote(served))
    assert (denied.returncode, denied.stderr.split(":")[0]) == (1, "FORBIDDEN")
    stranger = program(served.place, "run", "x", environ=remote(served) | {"RUNSTREAM_TOKEN": "x" * 43})
    assert (stranger.returncode, stranger.stderr.split(":")[0]) == (1, "UNAUTHORIZED")
    assert "-> RUNSTREAM_TOKEN" in stranger.stderr


def test_a_port_that_is_taken_is_said_with_what_to_do(served: Served, tmp_path: Path) -> None:
    taken = {"RUNSTREAM_LISTEN__PORT": served.url.rpartition(":")[2], "RUNSTREAM_LOG__LEVEL": "warning"}
    ended = program(served.place, "serve", "--state-dir", str(tmp_path), environ=taken)
    assert (ended.returncode, len(ended.stderr.splitlines())) == (2, 1)
    assert ended.stderr.startswith("ADDRESS_UNAVAILABLE: ")
    assert ended.stderr.endswith("-> stop what listens there, or choose another listen.host or listen.port\n")


def test_beside_a_running_host_a_command_is_a_second_node(served: Served) -> None:
    ran = program(served.place, "run", "hello", "--model", "echo", "--events")
    assert ran.returncode == 0, ran.stderr
    shown = program(served.place, "events", json.loads(ran.stdout.splitlines()[0])["runId"])
    assert "run.completed" in shown.stdout
    assert "held by a running host" in program(served.place, "check").stdout


def test_a_run_is_followed_from_another_process_until_it_ends(served: Served) -> None:
    with started(served.place, "run", "x", "--model", "slow", "--events", environ=remote(served)) as ran:
        run_id = json.loads(ran.line_with("run.started"))["runId"]
        followed = program(served.place, "log", run_id, "--follow")
        assert ran.ended() == 0
    assert "run.completed" in followed.stdout.splitlines()[-1]
    versions = [line.split()[0] for line in followed.stdout.splitlines()[1:]]
    assert versions == [str(number) for number in range(1, len(versions) + 1)]


@pytest.mark.parametrize("where", ["here", "there"])
def test_ctrl_c_cancels_the_run_and_says_so(served: Served, where: str) -> None:
    environ = remote(served) if where == "there" else {}
    with started(served.place, "run", "x", "--model", "hang", "--events", environ=environ) as ran:
        run_id = json.loads(ran.line_with("step.started"))["runId"]
        ran.process.send_signal(signal.SIGINT)
        assert ran.line_with("CANCELLED") == f"CANCELLED: you stopped the run {run_id}"
        assert ran.ended() == 1
    assert "run.cancelled" in program(served.place, "events", run_id, "--follow").stdout


def test_a_reader_that_goes_away_is_no_matter(place: Place) -> None:
    command = [sys.executable, "-m", "runstream", "run", "word " * 400, "--model", "words", "--events"]
    with subprocess.Popen(command, env=place.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as ran:
        assert ran.stdout is not None
        assert ran.stderr is not None
        assert b"run.started" in ran.stdout.readline()
        ran.stdout.close()
        assert (ran.wait(DEADLINE_S), ran.stderr.read()) == (1, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no file that is always full")
def test_output_that_finds_no_room_is_said_in_one_line(place: Place) -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "runstream", "providers"]
        ended = subprocess.run(command, env=place.environ, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (1, "cannot write: No space left on device\n")


def test_a_program_that_reads_gets_utf_8_whatever_the_locale(place: Place) -> None:
    ran = program(place, "run", "caf\u00e9 \u65e5", "--model", "echo", environ={"PYTHONIOENCODING": "ascii"})
    assert (ran.returncode, ran.stdout) == (0, "caf\u00e9 \u65e5\n")


def test_ctrl_c_while_the_program_loads_stops_it_in_one_line() -> None:
    code = """
import sys
class Stopped:
    def find_spec(self, name, *_):
        if name == "click":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Stopped())
from runstream.__main__ import main
main()
"""
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "", "stopped\n")


@pytest.mark.parametrize("closed", ["<&-", ">&-"])
def test_a_program_without_a_standard_stream_says_so(closed: str) -> None:
    command = ["/bin/sh", "-c", f'exec "$0" -m runstream providers {closed}', sys.executable]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "must be open" in ended.stderr


@pytest.mark.repo
def test_the_demonstration_ends_with_the_way_to_look_again(place: Place, tmp_path: Path) -> None:
    letter = str(ROOT / "examples" / "letter.txt")
    shown = program(place, "demo", "--input", letter, "--state-dir", str(tmp_path / "kept"))
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.count("text.delta") > 5
    assert "Hello! You sent" in shown.stdout
    again = re.findall(r"^  .* (events|log) (\S+) --state-dir (\S+)$", shown.stdout, re.MULTILINE)
    assert [words[0] for words in again] == ["events", "log"]
    for words in again:
        kept = program(place, *words[:2], "--state-dir", words[2])
        assert "run.completed" in kept.stdout


# The parts.


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("ftp://h", "is no address"),
        ("http://[h", "is no address"),
        ("http://example.org", "would show the token"),
        ("http://127.0.0.1:1", "does not answer"),
        ("http://127.0.0.1:1/a b", "is no address"),
    ],
)
async def test_a_host_that_cannot_be_reached_is_said_to_be_none(url: str, says: str) -> None:
    with pytest.raises(ClientError, match=says) as caught:
        await anext(remote_events(Remote(url, "t" * 43), {}))
    ending = ending_of(caught.value)
    assert ending is not None
    assert ending.code == 1
    assert says in ending.lines[0]


@pytest.mark.parametrize("written", ["\x1b[2J", "\x9b31m", "\x07", "\r", "\u202e", "\x7f", "\u2028"])
def test_what_a_model_writes_cannot_steer_a_terminal(written: str) -> None:
    assert written not in neutral(f"a{written}b\n\tc")
    assert neutral("a\n\tc é 漢 🙂") == "a\n\tc é 漢 🙂"
    event = {"type": "text.delta", "sequence": 1, "text": f"a{written}\nb", "timestamp": "2026-01-05T10:00:00.000Z"}
    assert written not in event_line(event)
    assert "\n" not in event_line(event | {"type": f"x{written}\n"})


async def test_text_is_made_harmless_for_a_terminal_only() -> None:
    class Terminal(io.StringIO):
        @override
        def isatty(self) -> bool:
            return True

    for stream, wanted in ((Terminal(), "␛[2J\n"), (io.StringIO(), "\x1b[2J\n")):
        output = Output(stream)
        await output.text("\x1b[2J")
        await output.ended()
        await output.ended()
        assert stream.getvalue() == wanted
    terminal = Terminal()
    await Output(terminal).pretty(b'{"a":1}')
    assert terminal.getvalue() == '{\n  "a": 1\n}\n'


@pytest.mark.parametrize(("pieces", "shown"), [((), "It is done.\n"), (("It ", "is."), "It is.\n")])
async def test_an_answer_without_its_pieces_is_shown_whole_and_one_in_pieces_once(
    pieces: tuple[str, ...], shown: str
) -> None:
    stream = io.StringIO()

    async def replay() -> AsyncGenerator[bytes]:
        for piece in pieces:
            yield msgspec.json.encode({"type": "text.delta", "text": piece})
        yield b'{"type":"run.completed","result":{"text":"It is done."}}'

    await running.run(replay(), Output(stream), "text", lambda _: None)
    assert stream.getvalue() == shown


def test_a_server_that_refuses_for_the_moment_makes_no_command_unusable() -> None:
    assert ending_of(ReplyError("MISCONF the disk is full")) == (
        1, ["Redis cannot serve at the moment: MISCONF the disk is full"]
    )  # fmt: skip
    assert ending_of(ReplyError("NOPERM no")) == (2, ["NOPERM no"])
    assert ending_of(OSError(errno.EPERM, "no")) is None


def test_an_end_that_nobody_foresaw_is_no_ending() -> None:
    assert ending_of(ValueError("x")) is None
    assert ending_of(ExceptionGroup("", [Refused("BUSY", "later")])) == (1, ["BUSY: later"])
    assert ending_of(ExceptionGroup("", [Unavailable("x"), Unavailable("y")])) is None
    told = ending_of(Unavailable("no answer"))
    assert told is not None
    assert told.code == 1
    assert problem_line({"code": "X", "message": "y", "outcome": "uncertain"}).endswith("(what it did is not known)")


def record(message: str, error: BaseException | None = None, **extra: Any) -> logging.LogRecord:
    made = logging.LogRecord("actors.node", logging.WARNING, "f", 1, message, (), None)
    made.exc_info = (type(error), error, error.__traceback__) if error else None
    made.__dict__.update(extra)
    return made


def test_a_record_is_one_line_for_people_and_one_object_for_programs() -> None:
    told = record("took \x1b over \ud800\nhunter2", run="r", node="n", epoch=3)
    line = logs.ForPeople().format(told)
    assert line.endswith("run=r node=n epoch=3")
    assert "took ␛ over � …" in line
    assert "hunter2" not in line
    fields = msgspec.json.decode(logs.AsJson().format(told))
    assert {"time", "level", "logger", "message", "run", "node", "epoch"} == set(fields)
    assert fields["epoch"] == 3


def test_an_exception_is_logged_without_its_words() -> None:
    try:
        raise ValueError("hunter2")
    except ValueError as error:
        told = record("executing a run failed", error)
    for formatter in (logs.ForPeople(), logs.AsJson()):
        line = formatter.format(told)
        assert "hunter2" not in line
        assert "ValueError" in line
        assert "test_an_exception_is_logged_without_its_words" in line


async def test_records_go_where_they_are_sent_and_nowhere_else() -> None:
    root = logging.getLogger()
    before, level, stream = list(root.handlers), root.level, io.StringIO()
    try:
        await logs.begin(LogSettings(level="warning", json=True), stream)
        logging.getLogger("actors").info("not told")
        logging.getLogger("actors").warning("told")
    finally:
        for handler in list(root.handlers):
            root.removeHandler(handler)
        for handler in before:
            root.addHandler(handler)
        root.setLevel(level)
    assert [msgspec.json.decode(line)["message"] for line in stream.getvalue().splitlines()] == ["told"]
