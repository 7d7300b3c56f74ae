"""What a caller says of itself for tracing: two headers that are checked, and discarded unless they hold (overview §12)."""

import re

from actors.telemetry import Correlation

_TRACEPARENT = re.compile(rb"00-([0-9a-f]{32})-([0-9a-f]{16})-(00|01)")
_UUID = re.compile(rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def correlation(traceparent: bytes | None, request_id: bytes | None) -> Correlation | None:
    """What holds of *traceparent* and *request_id*, or nothing."""
    found = _TRACEPARENT.fullmatch(traceparent or b"")
    trace_id, span_id = (int(found[1], 16), int(found[2], 16)) if found else (0, 0)
    lowered = (request_id or b"").lower()
    told = lowered.decode() if _UUID.fullmatch(lowered) else ""
    if not (trace_id and span_id):
        return Correlation(request_id=told) if told else None
    return Correlation(trace_id, span_id, found is not None and found[3] == b"01", told)
