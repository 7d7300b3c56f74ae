"""What an adapter has to do, as cases that any adapter can be put through (docs/providers.md).

An adapter's author writes a `Stage`: a vendor that answers as it is told, and the adapter connected to it.
No test runner is needed; a case that fails raises `NotConforming`.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Literal, Protocol, TypeAlias

import anyio
import msgspec
from msgspec import Raw, Struct

from actors.errors import Failed, Problem
from actors.ports import (
    AssistantMessage,
    Message,
    Model,
    ModelContext,
    ModelRequest,
    Retry,
    ToolCall,
    ToolDefinition,
    ToolMessage,
    Turn,
    UserMessage,
)
from providers import listing
from providers.probe import Malformed, sound

DEADLINE_S = 20.0
"""For one case; a cancelled call has a second of it."""
PATIENCE_S = 1.0
SECRET = "private-4711-words"

LOOKUP = ToolDefinition(
    "lookup",
    "Looks a number up.",
    Raw(b'{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"],"additionalProperties":false}'),
)


class NotConforming(AssertionError):
    """The adapter does not do what the port promises; the text says what."""


class Answer(Struct, frozen=True, kw_only=True):
    """What the vendor is to do with one request."""

    thought: str = ""
    """Reasoning, which is no visible text."""
    text: tuple[str, ...] = ()
    """Visible text in the pieces in which it is streamed."""
    calls: tuple[ToolCall, ...] = ()
    state: str = ""
    """Something of the vendor's own that must come back with the next step, if the vendor has such a thing."""
    counted: tuple[int, int, int, int] | None = None
    """Tokens read, of these cached, tokens written, of these reasoning."""
    end: Literal["stop", "length", "refusal", "error", "silence", "cut"] = "stop"
    """`error` tells a failure in the stream, with `SECRET` in it; `silence` goes on for ever; `cut` just ends."""
    status: int = 200
    """Another one is answered at once, with `SECRET` in the body."""
    retry_after: str | None = None


class Played(Protocol):
    """A vendor at work."""

    @property
    def model(self) -> Model:
        """The adapter."""
        ...

    @property
    def name(self) -> str:
        """The id of a model that it may be asked for."""
        ...

    def received(self, text: str) -> bool:
        """Whether *text* was in what the last request carried, as JSON writes it."""
        ...

    async def left(self) -> None:
        """Return as soon as the vendor sees that nobody listens to it any more."""
        ...


class Stage(Protocol):
    """Puts vendors on."""

    def playing(self, *answers: Answer) -> AbstractAsyncContextManager[Played]:
        """Open a vendor that gives *answers*, one for each request, and the last one to whatever follows."""
        ...


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


Case: TypeAlias = Callable[[Stage], Awaitable[None]]


async def conform(stage: Stage, *, without: Collection[str] = ()) -> None:
    """Put an adapter through all cases but those named in *without*.

    Raises:
        NotConforming: at the first case that fails, which its text names.
    """
    for name, case in CASES.items():
        if name not in without:
            await run(name, case, stage)


async def run(name: str, case: Case, stage: Stage) -> None:
    """Put an adapter through one *case*.

    Raises:
        NotConforming: it fails, or does not end.
    """
    try:
        with anyio.fail_after(DEADLINE_S):
            await case(stage)
    except TimeoutError:
        raise NotConforming(f"{name}: did not end within {DEADLINE_S:g} s") from None
    except (NotConforming, BaseExceptionGroup) as error:
        fault = _fault_in(error)
        if fault is None:
            raise
        raise NotConforming(f"{name}: {fault}") from None


def _fault_in(error: BaseException) -> NotConforming | None:
    """The fault that *error* is or, where the stage has tasks of its own, is a group around."""
    match error:
        case NotConforming():
            return error
        case BaseExceptionGroup(exceptions=within):
            return next((fault for one in within if (fault := _fault_in(one))), None)
        case _:
            return None


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


def _expect(holds: bool, what: str) -> None:  # noqa: FBT001 - reads as a sentence
    if not holds:
        raise NotConforming(what)


async def _refused(played: Played, asked: ModelRequest | None = None) -> Problem:
    """The failure of a call that must fail, after a look for secrets in it."""
    try:
        await played.model.complete(asked or request(played), Heard().context())
    except Failed as failed:
        chain: BaseException | None = failed
        while chain is not None:
            _expect(SECRET not in f"{chain!r} {chain}", "the failure repeats the vendor's words")
            chain = chain.__cause__ or (None if chain.__suppress_context__ else chain.__context__)
        _expect(SECRET not in failed.problem.message, "the public message repeats the vendor's words")
        return failed.problem
    raise NotConforming("the call did not fail")


async def _answered(played: Played, asked: ModelRequest | None = None) -> tuple[Turn, Heard]:
    heard = Heard()
    try:
        turn = await played.model.complete(asked or request(played), heard.context())
    except Failed as failed:
        raise NotConforming(f"the call failed with {failed.problem.code}") from None
    _expect(heard.text in ("", turn.text), "what was streamed is not the text of the turn")
    return turn, heard


async def describes_itself(stage: Stage) -> None:
    """The instance can be shown to clients."""
    async with stage.playing(Answer()) as played:
        wrong = listing.fault(played.model.info)
        _expect(wrong is None, f"{wrong} of its info cannot be shown")


async def probes_soundly(stage: Stage) -> None:
    """A probe tells a known code and sound models, or there is none."""
    async with stage.playing(Answer()) as played:
        probe = await played.model.inspect()
        try:
            if probe is not None:
                sound(probe)
        except Malformed as fault:
            raise NotConforming(f"the probe is malformed: {fault}") from None


async def streams_text(stage: Stage) -> None:
    """Text comes as it is written, and the turn holds all of it."""
    pieces = ("Good ", "morning, ", "Zoë — ", "\U0001f600 ", 'line\nbreak \\ "quoted"')
    async with stage.playing(Answer(text=pieces, counted=(12, 4, 7, 2))) as played:
        turn, heard = await _answered(played)
        _expect(turn.text == "".join(pieces), f"the text is {turn.text!r}")
        _expect(turn.finish_reason == "stop" and not turn.tool_calls, "it is no plain answer")
        if played.model.info.capabilities["textStreaming"]:
            _expect(len(heard.texts) > 1, "nothing was streamed, though the instance says that it streams")


async def counts_tokens(stage: Stage) -> None:
    """Usage is told in the wire's names, with the parts that the vendor tells."""
    async with stage.playing(Answer(text=("a",), counted=(12, 4, 7, 2))) as played:
        turn, _ = await _answered(played)
        told = turn.usage or {}
        most = {"inputTokens": 12, "cachedInputTokens": 4, "outputTokens": 7, "reasoningTokens": 2}
        _expect({"inputTokens", "outputTokens"} <= told.keys(), f"the usage is {told}")
        _expect(told.items() <= most.items(), f"the usage is {told}")


async def leaves_usage_unknown(stage: Stage) -> None:
    """What the vendor does not tell is not invented."""
    async with stage.playing(Answer(text=("a",))) as played:
        turn, _ = await _answered(played)
        _expect(not turn.usage, f"the usage is {turn.usage}")


async def answers_with_nothing(stage: Stage) -> None:
    """An empty answer is an answer."""
    async with stage.playing(Answer()) as played:
        turn, heard = await _answered(played)
        _expect((turn.text, turn.tool_calls, heard.texts) == ("", (), []), "it is not empty")


async def keeps_thoughts_apart(stage: Stage) -> None:
    """Reasoning is progress, and no text."""
    async with stage.playing(Answer(thought="Let me see.", text=("Yes.",))) as played:
        turn, heard = await _answered(played)
        _expect(turn.text == "Yes.", f"the text is {turn.text!r}")
        _expect(heard.progress > 0, "no progress was reported")


async def calls_tools(stage: Stage) -> None:
    """A call comes with its arguments; its result goes back with the state of the turn that asked."""
    called = ToolCall("call-1", "lookup", Raw(b'{"n":7}'))
    first = Answer(text=("One moment. ",), calls=(called,), state="opaque-state-0815")
    async with stage.playing(first, Answer(text=("It is 7.",))) as played:
        asked = request(played, tools=True)
        turn, _ = await _answered(played, asked)
        _same_calls(turn, (called,))
        said = AssistantMessage(turn.text, turn.tool_calls, turn.native)
        result = ToolMessage(turn.tool_calls[0].id, "lookup", '{"receipt":"r-99"}')
        last, _ = await _answered(played, request(played, *asked.messages, said, result, tools=True))
        _expect(last.text == "It is 7.", f"the last text is {last.text!r}")
        _expect(played.received("r-99"), "the result did not reach the vendor")
        if played.model.info.capabilities.get("nativeContinuation"):
            _expect(played.received("opaque-state-0815"), "the vendor's own state did not come back")


async def calls_tools_at_once(stage: Stage) -> None:
    """Calls of one turn keep their order, their ids and their arguments."""
    calls = tuple(ToolCall(f"call-{n}", "lookup", Raw(b'{"n":%d}' % n)) for n in (1, 2, 3))
    async with stage.playing(Answer(calls=calls)) as played:
        turn, heard = await _answered(played, request(played, tools=True))
        _same_calls(turn, calls)
        _expect(heard.progress > 0, "no progress was reported")


def _same_calls(turn: Turn, expected: tuple[ToolCall, ...]) -> None:
    told = [(call.id, call.name, msgspec.json.decode(call.arguments)) for call in turn.tool_calls]
    wanted = [(call.id, call.name, msgspec.json.decode(call.arguments)) for call in expected]
    _expect(told == wanted, f"the calls are {told}")


async def tells_the_output_limit(stage: Stage) -> None:
    """An answer that the limit cut says so."""
    async with stage.playing(Answer(text=("Half an",), end="length")) as played:
        turn, _ = await _answered(played)
        _expect((turn.text, turn.finish_reason) == ("Half an", "length"), "the cut is not told")


async def refuses_a_cut_call(stage: Stage) -> None:
    """A call that the limit cut is never made."""
    called = ToolCall("call-1", "lookup", Raw(b'{"n":7}'))
    async with stage.playing(Answer(calls=(called,), end="length")) as played:
        _code(await _refused(played, request(played, tools=True)), "TRUNCATED_TOOL_CALL")


async def tells_a_refusal(stage: Stage) -> None:
    """A model that will not answer is no answer."""
    async with stage.playing(Answer(end="refusal")) as played:
        _code(await _refused(played), "PROVIDER_REFUSAL", "PROVIDER_FAILED")


async def hides_a_failure(stage: Stage) -> None:
    """What the vendor says of its failure stays with the vendor."""
    async with stage.playing(Answer(text=("Good ",), end="error")) as played:
        _code(await _refused(played), "PROVIDER_FAILED")


async def tells_a_broken_stream(stage: Stage) -> None:
    """An answer without its end is none."""
    async with stage.playing(Answer(text=("Good ",), end="cut")) as played:
        _code(await _refused(played), "INCOMPLETE_STREAM", "INTERNAL_ERROR")


def _code(problem: Problem, *codes: str) -> None:
    _expect(problem.code in codes, f"it failed with {problem.code}")
    _expect(not problem.retryable, f"{problem.code} is told as retryable")


STATUSES: Mapping[int, tuple[str, bool]] = {
    **dict.fromkeys((301, 302, 307, 400, 404, 405, 408, 409, 413, 422, 451), ("PROVIDER_ERROR", False)),
    **dict.fromkeys((401, 403), ("PROVIDER_AUTH", False)),
    429: ("RATE_LIMITED", True),
    **dict.fromkeys((500, 501, 502, 503, 504, 529), ("PROVIDER_ERROR", True)),
}


async def tells_every_status(stage: Stage) -> None:
    """Each status has its code, and only some are worth another try."""
    for status, wanted in STATUSES.items():
        async with stage.playing(Answer(status=status)) as played:
            problem = await _refused(played)
            told = (problem.code, problem.retryable)
            _expect(told == wanted, f"{status} is told as {told}")


async def tries_again_when_told_to_wait(stage: Stage) -> None:
    """A 429 is tried again as the policy of the run allows, and nothing else is."""
    async with stage.playing(Answer(status=429, retry_after="0"), Answer(text=("Now.",))) as played:
        if played.model.info.capabilities.get("safeRetries"):
            turn, _ = await _answered(played, request(played, attempts=2))
            _expect(turn.text == "Now.", f"the text is {turn.text!r}")
    for answer in (Answer(status=429, retry_after="soon"), Answer(status=503), Answer(end="cut")):
        async with stage.playing(answer, Answer(text=("Again.",))) as played:
            await _refused(played, request(played, attempts=5))


async def stops_at_once(stage: Stage) -> None:
    """A call that is cancelled lets go of its vendor."""
    async with stage.playing(Answer(text=("Good ",), end="silence")) as played:
        heard = Heard()
        async with anyio.create_task_group() as tasks:

            async def call() -> None:
                await played.model.complete(request(played), heard.context())

            tasks.start_soon(call)
            await heard.spoke.wait()
            tasks.cancel_scope.cancel()
        with anyio.move_on_after(PATIENCE_S) as waiting:
            await played.left()
        _expect(not waiting.cancelled_caught, "the vendor was not let go")


CASES: Mapping[str, Case] = {
    case.__name__: case
    for case in (
        describes_itself,
        probes_soundly,
        streams_text,
        counts_tokens,
        leaves_usage_unknown,
        answers_with_nothing,
        keeps_thoughts_apart,
        calls_tools,
        calls_tools_at_once,
        tells_the_output_limit,
        refuses_a_cut_call,
        tells_a_refusal,
        hides_a_failure,
        tells_a_broken_stream,
        tells_every_status,
        tries_again_when_told_to_wait,
        stops_at_once,
    )
}
"""By name."""
