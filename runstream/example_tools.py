"""Two harmless tools to try things with: `runstream.example_tools` in the settings."""

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

from runstream.tools import tool

Scale: TypeAlias = Literal["celsius", "fahrenheit", "kelvin"]

_ZERO = {"celsius": 273.15, "fahrenheit": 459.67, "kelvin": 0.0}
"""What lies between the scale's own zero and the coldest there is."""
_PER_KELVIN = {"celsius": 1.0, "fahrenheit": 1.8, "kelvin": 1.0}


class Words(Struct, frozen=True):
    words: int
    characters: int
    lines: int


@tool(idempotent=True)
def word_count(text: Annotated[str, Meta(description="The text to count in.")]) -> Words:
    """Count the words, characters and lines of a text."""
    return Words(len(text.split()), len(text), len(text.splitlines()))


class Temperature(Struct, frozen=True, rename={"source": "from", "target": "to"}):
    value: Annotated[float, Meta(ge=-1e9, le=1e9)]
    source: Scale
    target: Scale


@tool(idempotent=True)
async def convert_temperature(asked: Temperature) -> dict[str, float]:
    """Convert a temperature between Celsius, Fahrenheit and Kelvin, to a thousandth of a degree."""
    kelvin = (asked.value + _ZERO[asked.source]) / _PER_KELVIN[asked.source]
    return {"value": round(kelvin * _PER_KELVIN[asked.target] - _ZERO[asked.target], 3)}
