"""Cases of adapters that answer: text, tokens, thoughts and calls."""

import msgspec
from msgspec import Raw

from actors.ports import AssistantMessage, ToolCall, ToolMessage, Turn
from providers import listing
from providers.kit.asking import NotConforming, answered, expect, request
from providers.kit.stage import Answer, Played, Stage
from providers.probe import Malformed, sound


async def describes_itself(stage: Stage) -> None:
    """The instance can be shown to clients."""
    async with stage.playing(Answer()) as played:
        wrong = listing.fault(played.model.info)
        expect(wrong is None, f"{wrong} of its info cannot be shown")


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
        turn, heard = await answered(played)
        expect(turn.text == "".join(pieces), f"the text is {turn.text!r}")
        expect(turn.finish_reason == "stop" and not turn.tool_calls, "it is no plain answer")
        if played.model.info.capabilities["textStreaming"]:
            expect(len(heard.texts) > 1, "nothing was streamed, though the instance says that it streams")


async def counts_tokens(stage: Stage) -> None:
    """Usage is told in the wire's names, with the parts that the vendor tells."""
    async with stage.playing(Answer(text=("a",), counted=(12, 4, 7, 2))) as played:
        turn, _ = await answered(played)
        told = turn.usage or {}
        most = {"inputTokens": 12, "cachedInputTokens": 4, "outputTokens": 7, "reasoningTokens": 2}
        expect({"inputTokens", "outputTokens"} <= told.keys(), f"the usage is {told}")
        expect(told.items() <= most.items(), f"the usage is {told}")


async def leaves_usage_unknown(stage: Stage) -> None:
    """What the vendor does not tell is not invented."""
    async with stage.playing(Answer(text=("a",))) as played:
        turn, _ = await answered(played)
        expect(not turn.usage, f"the usage is {turn.usage}")


async def answers_with_nothing(stage: Stage) -> None:
    """An empty answer is an answer."""
    async with stage.playing(Answer()) as played:
        turn, heard = await answered(played)
        expect((turn.text, turn.tool_calls, heard.texts) == ("", (), []), "it is not empty")


async def keeps_thoughts_apart(stage: Stage) -> None:
    """Reasoning is progress, and no text."""
    async with stage.playing(Answer(thought="Let me see.", text=("Yes.",))) as played:
        turn, heard = await answered(played)
        expect(turn.text == "Yes.", f"the text is {turn.text!r}")
        expect(heard.progress > 0, "no progress was reported")


async def calls_tools(stage: Stage) -> None:
    """A call comes with its arguments; its result goes back with the state of the turn that asked."""
    called = ToolCall("call-1", "lookup", Raw(b'{"n":7}'))
    first = Answer(text=("One moment. ",), calls=(called,), state="opaque-state-0815")
    async with stage.playing(first, Answer(text=("It is 7.",))) as played:
        turn, _ = await answered(played, request(played, tools=True))
        _same_calls(turn, (called,))
        await _told_the_results(played, turn, "It is 7.")
        if played.model.info.capabilities.get("nativeContinuation"):
            expect(played.received("opaque-state-0815"), "the vendor's own state did not come back")


async def calls_tools_at_once(stage: Stage) -> None:
    """Calls of one turn keep their order, their ids and their arguments; all of their results go back."""
    calls = tuple(ToolCall(f"call-{n}", "lookup", Raw(b'{"n":%d}' % n)) for n in (1, 2, 3))
    async with stage.playing(Answer(calls=calls), Answer(text=("They are 3.",))) as played:
        turn, heard = await answered(played, request(played, tools=True))
        _same_calls(turn, calls)
        expect(heard.progress > 0, "no progress was reported")
        await _told_the_results(played, turn, "They are 3.")


async def _told_the_results(played: Played, turn: Turn, last: str) -> None:
    """Tell the vendor what the calls of *turn* gave; it must answer with the *last* text."""
    asked = request(played, tools=True)
    said = AssistantMessage(turn.text, turn.tool_calls, turn.native)
    results = [ToolMessage(call.id, call.name, f'{{"receipt":"of-{call.id}"}}') for call in turn.tool_calls]
    told, _ = await answered(played, request(played, *asked.messages, said, *results, tools=True))
    expect(told.text == last, f"the last text is {told.text!r}")
    received = all(played.received(f"of-{call.id}") for call in turn.tool_calls)
    expect(received, "a result did not reach the vendor")


def _same_calls(turn: Turn, expected: tuple[ToolCall, ...]) -> None:
    told = [(call.id, call.name, msgspec.json.decode(call.arguments)) for call in turn.tool_calls]
    wanted = [(call.id, call.name, msgspec.json.decode(call.arguments)) for call in expected]
    expect(told == wanted, f"the calls are {told}")
