"""Host tools: Python functions that models may use, made by a decorator and found in a module or among the entry points."""

import importlib
import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any, Generic, ParamSpec, TypeGuard, TypeVar, cast, overload

import msgspec
from msgspec import Raw
from typing_extensions import override

from actors.errors import Refused
from actors.jsontext import encoded
from actors.ports import Tool, ToolContext, ToolDefinition
from actors.request import ToolFacts
from actors.schema import compiled
from runstream.parameters import Binding, binding_of, schema_of
from runstream.threads import in_thread

P = ParamSpec("P")
R = TypeVar("R")

ENTRY_POINTS = "runstream.tools"
OUTPUT_BYTES_MAX = 1_000_000
"""Compact JSON of an output; a tool may have a lower bound (runs §8)."""
DESCRIPTION_CHARS_MAX = 10_000

_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,63}")
_BINARY = (bytes, bytearray, memoryview)


class ToolError(Exception):
    """A tool, or the module *name* that should hold some, cannot be used as it is written; who wrote it must act."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name}: {reason}")
        self.name = name
        self.reason = reason


class FunctionTool(Generic[P, R]):
    """A function as a `Tool`; called, it is still that function."""

    def __init__(self, function: Callable[P, R], definition: ToolDefinition, binding: Binding) -> None:
        self.definition = definition
        self.requires_approval = False
        self.idempotent = False
        self.output_bytes_max = OUTPUT_BYTES_MAX
        self.__doc__ = function.__doc__
        self.__wrapped__ = function
        self._binding = binding

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.__wrapped__(*args, **kwargs)

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> object:
        """Call the function, a synchronous one in a thread of its own.

        Raises:
            msgspec.ValidationError: the arguments are not what the function takes.
        """
        given = self._binding.bound(arguments, context)
        function = cast("Callable[..., Any]", self.__wrapped__)
        if inspect.iscoroutinefunction(function):
            return _json_value(await cast("Awaitable[object]", function(**given)))
        return await in_thread(lambda: _json_value(function(**given)), self.definition.name)


class Toolbox(Mapping[str, Tool]):
    """Tools by their names, each fit for use."""

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        """Take *tools* in.

        Raises:
            ToolError: two have one name, or one cannot be shown to a model.
        """
        self._tools: dict[str, Tool] = {}
        for each in tools:
            name = each.definition.name
            if name in self._tools:
                raise ToolError(name, "there is another tool of this name")
            _check(each)
            self._tools[name] = each

    @property
    def facts(self) -> dict[str, ToolFacts]:
        """What request checks need to know."""
        return {name: ToolFacts(requires_approval=each.requires_approval) for name, each in self._tools.items()}

    @override
    def __getitem__(self, name: str) -> Tool:
        return self._tools[name]

    @override
    def __iter__(self) -> Iterator[str]:
        return iter(self._tools)

    @override
    def __len__(self) -> int:
        return len(self._tools)


@overload
def tool(function: Callable[P, R], /) -> FunctionTool[P, R]: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    input_schema: Mapping[str, Any] | None = None,
    requires_approval: bool = False,
    idempotent: bool = False,
    output_bytes_max: int = OUTPUT_BYTES_MAX,
) -> Callable[[Callable[P, R]], FunctionTool[P, R]]: ...
def tool(
    function: Callable[P, R] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    input_schema: Mapping[str, Any] | None = None,
    requires_approval: bool = False,
    idempotent: bool = False,
    output_bytes_max: int = OUTPUT_BYTES_MAX,
) -> FunctionTool[P, R] | Callable[[Callable[P, R]], FunctionTool[P, R]]:
    """The function below as a tool: its name, the first paragraph of its docstring and its hints, where nothing else is given.

    Raises:
        ToolError: no schema can be made of its parameters, or arguments cannot be given to them.
    """

    def made(function: Callable[P, R]) -> FunctionTool[P, R]:
        called = name or cast("str", getattr(function, "__name__", ""))
        try:
            binding = binding_of(function, derived=input_schema is None)
            schema = schema_of(binding) if input_schema is None else encoded(dict(input_schema))
        except (TypeError, ValueError) as unusable:
            raise ToolError(called, str(unusable)) from None
        definition = ToolDefinition(called, description or _first_paragraph(function), Raw(schema))
        result = FunctionTool(function, definition, binding)
        result.requires_approval = requires_approval
        result.idempotent = idempotent
        result.output_bytes_max = output_bytes_max
        return result

    return made if function is None else made(function)


async def load(module_name: str) -> list[Tool]:
    """Import a module and return the tools at its top level, in the order in which it names them.

    Raises:
        ToolError: the module cannot be imported, or holds no tool.
    """
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise ToolError(module_name, f"cannot be imported: {type(error).__name__}: {error}") from error
    return _tools_of(module_name, module)


async def installed() -> list[Tool]:
    """Return the tools that installed distributions offer: each entry point of the group is a tool or a module of some.

    Raises:
        ToolError: an entry point cannot be loaded, or is neither.
    """
    found: list[Tool] = []
    for entry in sorted(entry_points(group=ENTRY_POINTS), key=lambda each: each.name):
        try:
            offered: object = entry.load()
        except Exception as error:
            raise ToolError(entry.value, f"cannot be loaded: {type(error).__name__}: {error}") from error
        found.extend([offered] if _is_tool(offered) else _tools_of(entry.value, offered))
    return found


def _first_paragraph(function: Callable[..., Any]) -> str:
    return " ".join((inspect.getdoc(function) or "").partition("\n\n")[0].split())


def _check(each: Tool) -> None:
    name, description = each.definition.name, each.definition.description
    if _NAME.fullmatch(name) is None:
        raise ToolError(name, "a name is a letter or _ and up to 63 more letters, digits or _")
    if not 1 <= len(description) <= DESCRIPTION_CHARS_MAX:
        raise ToolError(name, f"a description has 1 to {DESCRIPTION_CHARS_MAX} characters; a docstring will do")
    if not 1 <= each.output_bytes_max <= OUTPUT_BYTES_MAX:
        raise ToolError(name, f"output_bytes_max is from 1 to {OUTPUT_BYTES_MAX}")
    try:
        compiled(bytes(each.definition.input_schema))
    except Refused as refused:
        raise ToolError(name, refused.problem.message) from None


def _is_tool(value: object) -> TypeGuard[Tool]:
    fits = isinstance(getattr(value, "definition", None), ToolDefinition) and callable(getattr(value, "call", None))
    return fits and not isinstance(value, type)


def _tools_of(name: str, module: object) -> list[Tool]:
    if not isinstance(module, ModuleType):
        raise ToolError(name, "is neither a tool nor a module")
    found = {id(value): value for value in vars(module).values() if _is_tool(value)}
    if not found:
        raise ToolError(name, "has no tool at its top level")
    return list(found.values())


def _json_value(output: object) -> object:
    """What a function returned as JSON has it: Structs and their like as objects, any sequence as a list."""
    return _listed(msgspec.to_builtins(output, builtin_types=_BINARY))


def _listed(value: object) -> object:
    if isinstance(value, dict):
        return {name: _listed(each) for name, each in cast("dict[object, object]", value).items()}
    return [_listed(each) for each in cast("list[object]", value)] if isinstance(value, (list, tuple)) else value
