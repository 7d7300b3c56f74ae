"""The words of the protocol's scenarios: references and operators in their values, and what they expect of what came."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from api.problems import DEVIATIONS
from tests.strict_client import Object

Config = Mapping[str, Any]
_REFERENCE = re.compile(r"\$([A-Z]\w*|fixtures)((?:\.\w+)*)")
_SUM = re.compile(_REFERENCE.pattern + r" \+ (\d+)")
_MISSING = object()
_BAD_INPUT = frozenset(DEVIATIONS[400].split())


class Names:
    """What a scenario may refer to."""

    def __init__(self, fixtures: Config) -> None:
        self.saved: dict[str, Any] = {"fixtures": fixtures}

    def resolved(self, value: Any) -> Any:
        """*value* with its references and operators replaced by what they stand for."""
        match value:
            case str() if found := _REFERENCE.fullmatch(value):
                return self._named(found)
            case str() if found := _SUM.fullmatch(value):
                return self._named(found) + int(found[3])
            case {"$merge": [base, patch], **rest} if not rest:
                return self.resolved(base) | self.resolved(patch)
            case {"$without": [base, str(member)], **rest} if not rest:
                return {name: each for name, each in self.resolved(base).items() if name != member}
            case {"$repeat": [str(piece), int(times)], **rest} if not rest:
                return piece * times
            case dict():
                return {name: self.resolved(each) for name, each in value.items()}
            case list():
                return [self.resolved(each) for each in value]
            case _:
                return value

    def written(self, text: str) -> bytes:
        """*text* with the references in it replaced, and nothing else."""
        return _REFERENCE.sub(lambda found: str(self._named(found)), text).encode()

    def save(self, wanted: Mapping[str, str], document: Any) -> None:
        """Keep parts of *document* under names."""
        self.saved |= {name: at(document, pointer) for name, pointer in wanted.items()}

    def _named(self, found: re.Match[str]) -> Any:
        value = self.saved[found[1]]
        for member in found[2].split(".")[1:]:
            value = value[member]
        return self.resolved(value) if found[1] == "fixtures" else value


def at(document: Any, pointer: str) -> Any:
    """What a JSON *pointer* leads to."""
    for name in pointer.split("/")[1:]:
        if not isinstance(document, (dict, list)) or (isinstance(document, dict) and name not in document):
            return _MISSING
        document = document[int(name)] if isinstance(document, list) else document[name]
    return document


def fixture(fixtures: Config, named: Any) -> Any:
    """What a host or a model *named* so is, unless it is written out."""
    return fixtures[named[1:]] if isinstance(named, str) else named


def merged(base: Any, patch: Any) -> Any:
    """*base* with the members of *patch*, at every depth."""
    if not isinstance(base, dict) or not isinstance(patch, dict):
        return patch
    return {**base, **{name: merged(base.get(name), each) for name, each in patch.items()}}


def judge_events(events: Sequence[Object], expected: Sequence[Any], allowed: set[str]) -> None:
    """Nothing, if *events* are the expected ones in their order, with only *allowed* ones between."""
    wanted = list(expected)
    for event in events:
        if wanted and _suits(event, wanted[0]):
            wanted.pop(0)
        else:
            assert event["type"] in allowed, f"{event}, not {wanted[:1]}"
    assert not wanted, f"nothing more came; missing {wanted}"


def _suits(event: Object, item: Any) -> bool:
    if isinstance(item, str):
        return event["type"] == item
    return event["type"] == item["type"] and all(
        fits(at(event, pointer), value) for pointer, value in item.get("where", {}).items()
    )


def fits(found: Any, value: Any) -> bool:
    """Whether what was *found* is what *value* says: of an object the named members, anything else whole."""
    match value:
        case {"$absent": True}:
            return found is _MISSING
        case {"$present": True}:
            return found is not _MISSING
        case {"$oneOf": [*values]}:
            return any(fits(found, one) for one in values)
        case dict():
            return isinstance(found, dict) and all(
                fits(found.get(name, _MISSING), each) for name, each in value.items()
            )
        case list():
            return isinstance(found, list) and len(found) == len(value) and all(map(fits, found, value))
        case _:
            return bool(found == value) and isinstance(found, bool) == isinstance(value, bool)


def judge_error(status: int, answered: Any, expect: Config) -> None:
    """Nothing, if *answered* is the error that is expected, member for member.

    Where upstream answers bad input with 502 only because it never listed the code, this host answers 400.
    """
    told = answered.get("error", {})
    shown = {name: told.get(name) for name in ("code", "retryable", "outcome")}
    listed = 400 if expect["status"] == 502 and expect["code"] in _BAD_INPUT else expect["status"]
    assert (status, shown) == (
        listed,
        {"code": expect["code"], "retryable": expect["retryable"], "outcome": expect.get("outcome")},
    ), answered


def judge_body(answered: Any, expect: Config) -> None:
    """Nothing, if *answered* is the body that is expected."""
    assert fits(answered, expect.get("body", {})), answered
    assert answered == expect.get("bodyEquals", answered)
    said = [one["content"] for one in answered.get("history", ())]
    assert said == expect.get("bodyHistoryContents", said)
    assert len(said) == expect.get("bodyHistoryLength", len(said))
    shown = answered.get("events", ())
    types = [event["type"] for event in shown]
    assert types == expect.get("eventTypes", types)
    assert set(expect.get("containsEventTypes", ())) <= set(types), types
    if "lastEvent" in expect:
        judge_events(shown[-1:], [expect["lastEvent"]], set())
