"""Host tools: what the decorator reads off a function, how arguments reach it, and what a host refuses to offer."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Annotated, Any, Literal

import anyio
import msgspec
import pytest
from msgspec import Meta, Raw, Struct

from actors.ports import Tool, ToolContext, ToolDefinition
from actors.request import ToolFacts
from actors.schema import compiled
from runstream import example_tools, threads, tools
from runstream.tools import Toolbox, ToolError, installed, load, tool

pytestmark = pytest.mark.anyio

DEADLINE_S = 20.0
CONTEXT = ToolContext("r", "c", "ann", lambda: False, lambda: None)


class Point(Struct, rename="camel"):
    """A place."""

    at_x: int
    next: "Point | None" = None


def one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    limiter = anyio.CapacityLimiter(1)
    monkeypatch.setattr(threads, "_limiter", lambda: limiter)


def schema(of: Tool) -> Any:
    return json.loads(bytes(of.definition.input_schema))


def accepts(of: Tool, arguments: object) -> bool:
    return compiled(bytes(of.definition.input_schema)).accepts(arguments)


async def test_a_function_is_a_tool_with_its_name_its_first_paragraph_and_the_careful_flags() -> None:
    @tool
    def add(a: int, b: int = 2) -> int:
        """Add two numbers.

        Not for models.
        """
        return a + b

    made: Tool = add
    assert (made.definition.name, made.definition.description) == ("add", "Add two numbers.")
    assert (made.requires_approval, made.idempotent, made.output_bytes_max) == (False, False, 1_000_000)
    assert add(1, b=3) == 4
    assert await made.call({"a": 1}, CONTEXT) == 3


async def test_what_is_given_wins_over_what_the_function_says() -> None:
    @tool(name="sum", description="Sums.", requires_approval=True, idempotent=True, output_bytes_max=10)
    def add(a: int) -> int:
        """Add."""
        return a

    assert (add.definition.name, add.definition.description) == ("sum", "Sums.")
    assert (add.requires_approval, add.idempotent, add.output_bytes_max) == (True, True, 10)
    assert Toolbox([add]).facts == {"sum": ToolFacts(requires_approval=True)}


async def test_hints_make_a_schema_that_stands_alone_and_says_what_is_optional() -> None:
    @tool
    def plan(
        route: list[Point],
        mode: Literal["walk", "ride"] = "walk",
        pace: Annotated[float, Meta(gt=0, description="In km/h.")] = 5.0,
        tags: tuple[str, ...] = ("a",),
    ) -> None:
        """Plan."""

    assert schema(plan)["required"] == ["route"]
    assert schema(plan)["additionalProperties"] is False
    assert schema(plan)["properties"]["mode"] == {"enum": ["ride", "walk"], "default": "walk"}
    assert schema(plan)["properties"]["pace"]["description"] == "In km/h."
    assert list(schema(plan)["$defs"]) == ["Point"]
    assert accepts(plan, {"route": [{"atX": 1, "next": {"atX": 2}}], "pace": 1})
    for wrong in ({}, {"route": [{"at_x": 1}]}, {"route": [], "pace": 0}, {"route": [], "more": 1}, {"route": None}):
        assert not accepts(plan, wrong)


async def test_one_struct_takes_all_the_arguments_even_if_it_holds_itself() -> None:
    seen: list[Point] = []

    @tool
    def go(to: Point, context: ToolContext) -> str:
        """Go."""
        seen.append(to)
        return context.subject

    assert schema(go)["properties"]["atX"] == {"type": "integer"}
    assert list(schema(go)["$defs"]) == ["Point"]
    assert accepts(go, {"atX": 1, "next": {"atX": 2}})
    assert await go.call({"atX": 1, "next": {"atX": 2}}, CONTEXT) == "ann"
    assert seen == [Point(1, Point(2))]


async def test_a_tool_without_parameters_takes_an_empty_object() -> None:
    @tool
    async def ping(context: ToolContext) -> str:
        """Ping."""
        return context.call_id

    assert accepts(ping, {})
    assert not accepts(ping, {"a": 1})
    assert await ping.call({}, CONTEXT) == "c"


async def test_a_given_schema_stands_as_it_is_and_may_allow_more_than_the_function_takes() -> None:
    given = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}

    @tool(input_schema=given)
    def part(a: int) -> int:
        """Take a part."""
        return a

    @tool(input_schema=given)
    def whole(arguments: dict[str, int]) -> dict[str, int]:
        """Take it all."""
        return arguments

    assert schema(part) == schema(whole) == given
    assert await part.call({"a": 1, "b": 2}, CONTEXT) == 1
    assert await whole.call({"a": 1, "b": 2}, CONTEXT) == {"a": 1, "b": 2}


@pytest.mark.parametrize("wrong", [{"a": "1"}, {"a": True}, {"a": 1.5}, {"a": None}, {}, {"a": 1, "b": 1}])
async def test_arguments_are_converted_strictly(wrong: dict[str, Any]) -> None:
    @tool
    def take(a: int) -> int:
        """Take."""
        return a

    assert not accepts(take, wrong)
    with pytest.raises(msgspec.ValidationError):
        await take.call(wrong, CONTEXT)


async def test_what_the_schema_takes_for_a_number_the_function_gets_in_its_own_type() -> None:
    @tool
    def take(a: int, b: float, c: list[int]) -> list[str]:
        """Take."""
        return [repr(a), repr(b), repr(c)]

    arguments = {"a": 1.0, "b": 1, "c": [2.0, 10**30]}
    assert accepts(take, arguments)
    assert await take.call(arguments, CONTEXT) == ["1", "1.0", f"[2, {10**30}]"]


async def test_structs_dataclasses_and_tuples_come_out_as_json_and_bytes_do_not() -> None:
    @dataclass
    class Pair:
        one: int
        two: tuple[int, Point]

    @tool
    def give() -> object:
        """Give."""
        return (Pair(1, (2, Point(3))), {"a": (10**30,)}, b"x")

    expected = [{"one": 1, "two": [2, {"atX": 3, "next": None}]}, {"a": [10**30]}, b"x"]
    assert await give.call({}, CONTEXT) == expected


async def test_a_synchronous_tool_does_not_hold_up_the_loop_and_an_asynchronous_one_runs_on_it() -> None:
    go_on, names = threading.Event(), list[str]()

    @tool
    def slow() -> str:
        """Wait for the loop."""
        assert go_on.wait(DEADLINE_S)
        return threading.current_thread().name

    @tool
    async def quick() -> str:
        """Let the other go."""
        go_on.set()
        return threading.current_thread().name

    async def call(each: Tool) -> None:
        names.append(str(await each.call({}, CONTEXT)))

    async with anyio.create_task_group() as group:
        group.start_soon(call, slow)
        group.start_soon(call, quick)
    assert names == [threading.current_thread().name, "tool slow"]


@pytest.mark.parametrize(
    ("raised", "seen"), [(ValueError("a"), ValueError), (SystemExit(1), RuntimeError), (StopIteration(), RuntimeError)]
)
async def test_what_a_synchronous_tool_raises_reaches_its_caller_as_an_ordinary_error(
    raised: BaseException, seen: type[Exception]
) -> None:
    @tool
    def fail() -> None:
        """Fail."""
        raise raised

    with pytest.raises(seen):
        await fail.call({}, CONTEXT)


async def test_an_abandoned_thread_keeps_its_place_so_that_there_are_never_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one_place(monkeypatch)
    go_on, begun = threading.Event(), list[str]()

    @tool
    def stuck(name: str) -> None:
        """Get stuck."""
        begun.append(name)
        assert go_on.wait(DEADLINE_S)

    async def call(name: str) -> None:
        await stuck.call({"name": name}, CONTEXT)

    async def until_begun(names: list[str]) -> None:
        with anyio.fail_after(DEADLINE_S):
            while begun != names:
                await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as group:
        group.start_soon(call, "abandoned")
        await until_begun(["abandoned"])
        group.cancel_scope.cancel()
    async with anyio.create_task_group() as group:
        group.start_soon(call, "never begun")
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()
    async with anyio.create_task_group() as group:
        group.start_soon(call, "waiting")
        await anyio.wait_all_tasks_blocked()
        assert begun == ["abandoned"]
        go_on.set()
    assert begun == ["abandoned", "waiting"]


async def test_a_place_is_given_back_when_no_thread_can_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    one_place(monkeypatch)

    def none_left(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", none_left)
        with pytest.raises(RuntimeError):
            await example_tools.word_count.call({"text": ""}, CONTEXT)
    assert await example_tools.word_count.call({"text": "a b"}, CONTEXT)


def test_a_process_ends_while_a_tool_does_not(tmp_path: Path) -> None:
    code = """
import threading, anyio
from runstream.threads import in_thread
async def main():
    with anyio.move_on_after(0.05):
        await in_thread(threading.Event().wait, "stuck")
anyio.run(main)
print("over")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, timeout=30, check=True)
    assert done.stdout.strip() == b"over"


async def test_a_parameter_that_no_json_can_fill_is_refused_with_the_name_of_the_tool() -> None:
    def everything(*args: int) -> None: ...
    def by_place(a: int, /) -> None: ...
    def odd(a: Callable[[], None]) -> None: ...
    def endless(a: float = float("inf")) -> None: ...
    def unknown(a: "Missing") -> None: ...  # type: ignore[name-defined]  # noqa: F821 - the point

    functions: list[Callable[..., None]] = [everything, by_place, odd, endless, unknown]
    for function in functions:
        with pytest.raises(ToolError) as refused:
            tool(function)
        assert refused.value.name == function.__name__


async def test_a_schema_that_is_not_json_is_refused() -> None:
    with pytest.raises(ToolError):
        tool(input_schema={"a": object()})(example_tools.word_count.__wrapped__)


def declared(name: str = "a", description: str = "A.", given: Mapping[str, Any] | None = None, most: int = 10) -> Tool:
    @tool(name=name, description=description, input_schema=given or {}, output_bytes_max=most)
    def made() -> None: ...

    return made


@pytest.mark.parametrize(
    "unfit",
    [
        declared(name="1a"),
        declared(name="a-b"),
        declared(name="a" * 65),
        declared(name="a\n"),
        declared(description="x" * 10_001),
        declared(most=0),
        declared(most=1_000_001),
        declared(given={"type": "nothing"}),
        declared(given={"$ref": "other.json"}),
    ],
)
async def test_a_toolbox_refuses_a_tool_that_no_model_can_be_shown(unfit: Tool) -> None:
    with pytest.raises(ToolError) as refused:
        Toolbox([unfit])
    assert refused.value.name == unfit.definition.name


async def test_a_toolbox_refuses_a_tool_that_says_nothing_of_itself() -> None:
    @tool
    def silent() -> None: ...

    with pytest.raises(ToolError, match="silent"):
        Toolbox([silent])


async def test_a_toolbox_holds_each_name_once_and_in_order() -> None:
    a, b = declared("a"), declared("b")
    assert dict(Toolbox([b, a])) == {"b": b, "a": a}
    assert len(Toolbox([a, b])) == 2
    with pytest.raises(ToolError, match="another tool"):
        Toolbox([a, b, declared("a")])


@contextmanager
def module(folder: Path, name: str, text: str) -> Iterator[None]:
    (folder / f"{name}.py").write_text(text)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop(name, None)


async def test_a_module_gives_the_tools_at_its_top_level_whoever_made_them(tmp_path: Path) -> None:
    text = """
from actors.ports import Tool, ToolDefinition
from msgspec import Raw
from runstream.example_tools import word_count

count = word_count

class Own:
    definition = ToolDefinition("own", "Own.", Raw(b"{}"))
    requires_approval, idempotent, output_bytes_max = True, False, 100

    async def call(self, arguments, context):
        return dict(arguments)

own = Own()
"""
    with module(tmp_path, "tools_of_a_user", text):
        found = Toolbox(await load("tools_of_a_user"))
    assert list(found) == ["word_count", "own"]
    assert await found["own"].call({"a": 1}, CONTEXT) == {"a": 1}


@pytest.mark.parametrize("text", ["raise ValueError('no')", "x = (", "x = 1", "import missing_module_of_a_user"])
async def test_a_module_that_fails_or_has_no_tool_is_refused_by_its_name(tmp_path: Path, text: str) -> None:
    with module(tmp_path, "broken_tools", text), pytest.raises(ToolError) as refused:
        await load("broken_tools")
    assert refused.value.name == "broken_tools"


async def test_entry_points_are_tools_or_modules_of_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    def offering(*values: str) -> None:
        entries = EntryPoints(EntryPoint(str(number), value, "runstream.tools") for number, value in enumerate(values))
        monkeypatch.setattr(tools, "entry_points", entries.select)

    offering("runstream.example_tools:word_count")
    assert await installed() == [example_tools.word_count]
    offering("runstream.example_tools")
    assert await installed() == [example_tools.word_count, example_tools.convert_temperature]
    offering()
    assert await installed() == []
    for wrong in ("runstream.example_tools:Words", "runstream.example_tools:missing", "missing_module_of_a_user"):
        offering(wrong)
        with pytest.raises(ToolError, match=wrong):
            await installed()


async def test_the_two_example_tools_do_what_they_say() -> None:
    box = Toolbox(await load("runstream.example_tools"))
    assert list(box) == ["word_count", "convert_temperature"]
    assert await box["word_count"].call({"text": "two words\n"}, CONTEXT) == {"words": 2, "characters": 10, "lines": 1}
    for value, source, target, expected in [(100, "celsius", "fahrenheit", 212), (0, "kelvin", "celsius", -273.15)]:
        asked = {"value": value, "from": source, "to": target}
        assert accepts(box["convert_temperature"], asked)
        assert await box["convert_temperature"].call(asked, CONTEXT) == {"value": expected}
    assert not accepts(box["convert_temperature"], {"value": 1, "from": "celsius", "to": "rankine"})


async def test_a_class_with_the_shape_of_a_tool_is_not_taken_for_one() -> None:
    class Shape:
        definition = ToolDefinition("a", "A.", Raw(b"{}"))

        async def call(self) -> None: ...

    assert not tools._is_tool(Shape)
    assert tools._is_tool(Shape())
