"""A run's side of a model call, written down: requests, and a context that keeps what it was told."""

from anyio import CancelScope
from msgspec import Raw

from actors.ports import (
    AssistantMessage,
    Message,
    ModelContext,
    ModelRequest,
    Retry,
    ToolDefinition,
    ToolMessage,
    UserMessage,
)


class Heard:
    """What a model told its context, and how long it slept, in order."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.progress = 0
        self.slept: list[float] = []
        self.cancel_on_text: CancelScope | None = None

    def context(self) -> ModelContext:
        return ModelContext("11111111-2222-8333-8444-555555555555", "ada", self._hear, self._worked)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    def _hear(self, text: str) -> None:
        self.said.append(text)
        if self.cancel_on_text is not None:
            self.cancel_on_text.cancel()

    def _worked(self) -> None:
        self.progress += 1


def request(
    said: str = "hello",
    *after: Message,
    model: str = "m",
    before: tuple[Message, ...] = (),
    tools: tuple[str, ...] = (),
    retry: Retry = Retry(),  # noqa: B008 - frozen
) -> ModelRequest:
    return ModelRequest(
        model=model,
        messages=(*before, UserMessage(said), *after),
        tools=tuple(ToolDefinition(name, "does it", Raw(b"{}")) for name in tools),
        retry=retry,
    )


ANSWERED = AssistantMessage("one moment")
RESULT = ToolMessage("call-1", "lookup", '{"found":3}')
