"""Scripts that come with the program: for the demo, for tests and for load, and one model for every failure."""

from collections.abc import Mapping
from typing import Any

from providers.failures import FAILURES
from providers.script import Script, scripts

_DEMO = (
    "Hello! You sent $words words, and they begin with “$opening”. "
    "Each word of this answer was recorded before you saw it, "
    "so anyone you allow can read this run again, from any node, today or next week."
)

MODELS: Mapping[str, Any] = {
    "demo": {"turns": [{"reply": _DEMO, "delay_ms": 30, "usage": "words"}]},
    "echo": {"turns": [{"echo": True, "usage": "words"}]},
    "words": {"turns": [{"echo": True, "delay_ms": 20, "usage": "words"}]},
    "tokens": {"turns": [{"echo": True, "tokens": True, "delay_ms": 2, "usage": "words"}]},
    "whole": {"turns": [{"text": "Answered in one piece.", "usage": {"inputTokens": 1, "outputTokens": 4}}]},
    "json-good": {"turns": [{"json": {"ok": True}}]},
    "json-wrong": {"turns": [{"json": {"ok": "maybe"}}]},
    "json-bad": {"turns": [{"text": "not json"}]},
    "tool": {
        "turns": [
            {"tool_calls": [{"arguments": {"query": "solar"}}], "native": {"asked": 1}},
            {"reply": "The tool answered $result."},
        ]
    },
    "tool-loop": {"turns": [{"tool_calls": [{"arguments": {"query": "solar"}}]}]},
    "burst": {"turns": [{"repeat": {"text": "tok ", "times": 2_000}}]},
    "slow": {"turns": [{"wait_ms": 2_000, "reply": "Thank you for waiting.", "delay_ms": 500}]},
    "progress": {"turns": [{"progress": 16, "every_ms": 20, "text": "Done."}]},
    "length": {"turns": [{"stream": ["Cut ", "short"], "finish_reason": "length"}]},
    "rate-limited": {"turns": [{"rate_limit": {"times": 2, "retry_after_ms": 10}, "text": "Served at last."}]},
    "hang": {"turns": [{"hang": True}]},
    "hang-midway": {"turns": [{"stream": ["Half a "], "hang": True}]},
    "hang-deaf": {"turns": [{"hang": True, "ignore_cancel": True}]},
    "fail-provider-error-500": {"turns": [{"fail": {"code": "PROVIDER_ERROR", "retryable": True}}]},
    "fail-untyped": {"turns": [{"raise": "private: a word that no client may see"}]},
}

_AMID_STREAM = ("INVALID_STREAM", "INCOMPLETE_STREAM", "RESPONSE_TOO_LARGE", "INTERNAL_ERROR")


def models() -> dict[str, Script]:
    """The scripts by model name; `fail-<code>` fails with that code of providers §5."""
    return scripts({**MODELS, **{_name(code): _failing(code) for code in FAILURES}})


def _name(code: str) -> str:
    return "fail-" + code.lower().replace("_", "-")


def _failing(code: str) -> dict[str, Any]:
    return {"turns": [{"fail": {"code": code, "after": 3 if code in _AMID_STREAM else 0}}]}
