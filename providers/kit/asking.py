"""How a case asks an adapter, and what it hears of it."""

from collections.abc import Iterator

import anyio
from msgspec import Raw

from actors.errors import Failed, Problem
from actors.ports import Message, ModelContext, ModelRequest, Retry, ToolDefinition, Turn, UserMessage
from providers.kit.stage import SECRET, Played

LOOKUP = ToolDefinition(
    "lookup",
    "Looks a number up.",
    Raw(b'{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"],"additionalProperties":false}'),
)


class NotConforming(AssertionError):
    """The adapter does not do what the port promises; the text says what."""


class Heard:
    """What an adapter told its context."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.progress = 0
        self.spoke = anyio.Event()

    @property
    def text(self) -> str:
        """All visible text."""
        return "".join(self.texts)

    def context(self) -> ModelContext:
        """What the adapter is given."""
        return ModelContext("11111111-2222-8333-8444-555555555555", "ada", self._hear, self._worked)

    def _hear(self, text: str) -> None:
        self.texts.append(text)
        self.spoke.set()

    def _worked(self) -> None:
        self.progress += 1


def expect(holds: bool, what: str) -> None:  # noqa: FBT001 - reads as a sentence
    """Nothing, if it *holds*.

    Raises:
        NotConforming: it does not.
    """
    if not holds:
        raise NotConforming(what)


def request(played: Played, *messages: Message, tools: bool = False, attempts: int = 1) -> ModelRequest:
    """A step that asks for what *messages* say."""
    return ModelRequest(
        model=played.name,
        messages=messages or (UserMessage("Good morning?"),),
        instructions="Be brief.",
        tools=(LOOKUP,) if tools else (),
        max_output_tokens=500,
        retry=Retry(attempts, 1, 5_000),
    )


async def answered(played: Played, asked: ModelRequest | None = None) -> tuple[Turn, Heard]:
    """Return the turn of a call that must succeed, and what was heard on the way.

    Raises:
        NotConforming: it fails, or what was streamed is not the text of the turn.
    """
    heard = Heard()
    try:
        turn = await played.model.complete(asked or request(played), heard.context())
    except Failed as failed:
        raise NotConforming(f"the call failed with {failed.problem.code}") from None
    expect(heard.text in ("", turn.text), "what was streamed is not the text of the turn")
    return turn, heard


async def refused(played: Played, asked: ModelRequest | None = None) -> Problem:
    """Return the failure of a call that must fail, after a look for secrets in it.

    Raises:
        NotConforming: it does not fail, or the vendor's words are in the failure.
    """
    try:
        await played.model.complete(asked or request(played), Heard().context())
    except Failed as failed:
        for error in _chain(failed):
            expect(SECRET not in f"{error!r} {error}", "the failure repeats the vendor's words")
        expect(SECRET not in failed.problem.message, "the public message repeats the vendor's words")
        return failed.problem
    raise NotConforming("the call did not fail")


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The *error*, and what a traceback would tell of how it came."""
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
