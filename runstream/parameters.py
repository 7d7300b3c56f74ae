"""The parameters of a function as a JSON Schema, and the arguments of a call as its parameters."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast, get_type_hints

import msgspec
from msgspec import Struct

from actors.jsontext import encoded
from actors.ports import ToolContext

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_REF = "#/$defs/"
_PLAIN = (str, int, float, bool, type(None))


class Unusable(ValueError):
    """The function cannot be called with JSON; the message says why."""


class Binding(NamedTuple):
    """How arguments become parameters."""

    type: Any
    """What the whole arguments are converted to."""
    whole: str | None
    """The parameter that takes them whole; otherwise each member has its own."""
    context: str | None
    """The parameter that takes the context."""

    def bound(self, arguments: Mapping[str, Any], context: ToolContext) -> dict[str, Any]:
        """The keyword arguments of one call; what was not given is left to the function's own defaults."""
        converted = msgspec.convert(_integral(arguments), self.type)
        given = {self.context: context} if self.context else {}
        if self.whole is not None:
            return {self.whole: converted, **given}
        return {name: getattr(converted, name) for name in self.type.__struct_fields__ if name in arguments} | given


def binding_of(function: Callable[..., Any], *, derived: bool) -> Binding:
    """How the parameters of *function* take arguments, whose schema is *derived* from them or given.

    Raises:
        Unusable: they cannot.
    """
    parameters, hints = _parameters(function)
    context = next((each.name for each in parameters if hints.get(each.name) is ToolContext), None)
    taking = [each for each in parameters if each.name != context]
    if len(taking) == 1 and _takes_all(hints.get(taking[0].name), derived=derived):
        return Binding(hints[taking[0].name], taking[0].name, context)
    fields = [_field(each, hints.get(each.name, Any)) for each in taking]
    # A given schema says itself whether there may be members that the function does not take.
    made = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=derived)
    return Binding(made, None, context)


def schema_of(binding: Binding) -> bytes:
    """The JSON Schema of the arguments, whole in itself.

    Raises:
        Unusable: a parameter's type has none.
    """
    try:
        (root,), components = msgspec.json.schema_components([binding.type], ref_template=_REF + "{name}")
        text = encoded(components)
    except (TypeError, ValueError) as error:
        raise Unusable(f"no schema can be made of its parameters: {error}") from None
    top = root["$ref"].removeprefix(_REF)
    schema = {word: value for word, value in components[top].items() if word != "title"}
    if f'"{_REF}{top}"'.encode() not in text:  # else it holds itself
        del components[top]
    return encoded({"$schema": _DIALECT} | schema | ({"$defs": components} if components else {}))


def _parameters(function: Callable[..., Any]) -> tuple[list[inspect.Parameter], dict[str, Any]]:
    try:
        parameters = list(inspect.signature(function).parameters.values())
        hints = get_type_hints(function, include_extras=True)
    except (NameError, TypeError, ValueError) as error:
        raise Unusable(f"its parameters cannot be read: {error}") from None
    if odd := [each.name for each in parameters if each.kind not in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]:
        raise Unusable(f"the parameter {odd[0]} cannot be given by its name")
    return parameters, hints


def _takes_all(hint: Any, *, derived: bool) -> bool:
    if not derived and (hint in (dict, Mapping) or getattr(hint, "__origin__", None) in (dict, Mapping)):
        return True
    return isinstance(hint, type) and issubclass(hint, Struct)


def _field(parameter: inspect.Parameter, hint: Any) -> tuple[str, Any] | tuple[str, Any, Any]:
    default = parameter.default
    if default is parameter.empty:
        return parameter.name, hint
    shown = isinstance(default, _PLAIN)
    return parameter.name, hint, default if shown else msgspec.field(default_factory=lambda: default)


def _integral(value: object) -> object:
    """The JSON *value* with 1.0 as 1, which is as good an integer to JSON Schema."""
    if isinstance(value, Mapping):
        return {name: _integral(each) for name, each in cast("Mapping[str, object]", value).items()}
    if isinstance(value, list):
        return [_integral(each) for each in cast("list[object]", value)]
    return int(value) if isinstance(value, float) and value.is_integer() else value
