"""ECMAScript patterns (JSON Schema's `pattern`) in the language of RE2, which matches in linear time whatever is asked.

Look-around and back-references have no equal there.
"""

import re
from collections.abc import Iterator
from typing import Any

import re2  # pyright: ignore[reportMissingTypeStubs]

_RE2: Any = re2

PROGRAM_MAX = 20_000
"""Instructions that one compiled pattern may have; `(a{1000}){1000}` has none of our memory."""

_SPACES = r"\t-\r \x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}\x{feff}"
_NOT_SPACES = (
    r"\x00-\x08\x0e-\x1f!-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff}\x{200b}-\x{2027}\x{202a}-\x{202e}"
    r"\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{fefe}\x{ff00}-\x{10ffff}"
)
_OUTSIDE = {
    r"\s": f"[{_SPACES}]",
    r"\S": f"[{_NOT_SPACES}]",
    ".": r"[^\n\r\x{2028}\x{2029}]",
    r"\b": r"\b",
    r"\B": r"\B",
}
_INSIDE = {r"\s": _SPACES, r"\S": _NOT_SPACES, r"\b": r"\x08", "[": r"\["}
_SAME = {rf"\{letter}" for letter in "dDwWfnrtv"}
_TOKEN = re.compile(
    r"""\\u\{[0-9a-fA-F]+\} | \\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2} | \\u[0-9a-fA-F]{4}
      | \\x[0-9a-fA-F]{2} | \\c[a-zA-Z] | \\0(?![0-9]) | \\[pP]\{[A-Za-z0-9_=]+\} | \\. | \[\^?\]? | \(\?(?:<?[=!]|[^\\\]])? | .""",
    re.VERBOSE | re.DOTALL,
)
_CATEGORIES = {
    "Letter": "L", "Cased_Letter": "LC", "Uppercase_Letter": "Lu", "Lowercase_Letter": "Ll", "Titlecase_Letter": "Lt",
    "Modifier_Letter": "Lm", "Other_Letter": "Lo", "Mark": "M", "Nonspacing_Mark": "Mn", "Spacing_Mark": "Mc",
    "Enclosing_Mark": "Me", "Number": "N", "Decimal_Number": "Nd", "digit": "Nd", "Letter_Number": "Nl",
    "Other_Number": "No", "Punctuation": "P", "punct": "P", "Symbol": "S", "Math_Symbol": "Sm", "Currency_Symbol": "Sc",
    "Separator": "Z", "Space_Separator": "Zs", "Line_Separator": "Zl", "Paragraph_Separator": "Zp", "Other": "C",
    "Control": "Cc", "Format": "Cf", "Private_Use": "Co",
}  # fmt: skip


class Pattern:
    """A compiled pattern."""

    def __init__(self, source: str) -> None:
        """Raise `ValueError` for a pattern that RE2 cannot express or that would need too much memory."""
        options = _RE2.Options()
        options.log_errors = False
        try:
            self._compiled: Any = _RE2.compile("".join(_translated(source)), options)
        except _RE2.error as error:
            raise ValueError("not a regular pattern") from error
        self.size = int(self._compiled.programsize)
        if self.size > PROGRAM_MAX:
            raise ValueError("pattern too large")

    def occurs(self, text: str) -> bool:
        """Whether the pattern matches somewhere in *text*."""
        return self._compiled.search(text) is not None


def _translated(source: str) -> Iterator[str]:
    inside = False
    for found in _TOKEN.finditer(source):
        token = found[0]
        if inside:
            # A bracket that opens outside is a letter here, so the one that ends such a token ends the class.
            inside = token == r"\]" or not token.endswith("]")
            yield _one(token, _INSIDE) if token[0] == "\\" else "".join(_INSIDE.get(each, each) for each in token)
        elif token in ("[]", "[^]"):
            yield r"[^\x00-\x{10ffff}]" if token == "[]" else r"[\x00-\x{10ffff}]"
        elif token[0] == "[":
            inside = True
            yield token
        else:
            yield _one(token, _OUTSIDE)


def _one(token: str, special: dict[str, str]) -> str:
    if token in special:
        return special[token]
    if token[0] != "\\":
        return _group(token)
    return _escape(token)


def _group(token: str) -> str:
    if token.startswith("(?") and token not in ("(?:", "(?<"):
        raise ValueError("not a regular pattern")
    return token


def _escape(token: str) -> str:
    kind, rest = token[1:2], token[2:]
    if token in _SAME or (kind == "x" and rest):
        return token
    if kind == "u" and rest:
        return f"\\x{{{_code_point(rest):x}}}"
    if kind == "c" and rest:
        return f"\\x{ord(rest) % 32:02x}"
    if kind in "pP" and rest:
        name = rest[1:-1].rpartition("=")[2]
        return f"\\{kind}{{{_CATEGORIES.get(name, name)}}}"
    if kind == "0":
        return r"\x00"
    if kind and kind.isascii() and not kind.isalnum():
        return re.escape(kind) if kind != "_" else kind
    raise ValueError("not a regular pattern")


def _code_point(digits: str) -> int:
    high, _, low = digits.partition("\\u")
    if low:
        return 0x10000 + ((int(high, 16) - 0xD800) << 10) + int(low, 16) - 0xDC00
    return int(digits.strip("{}"), 16)
