"""Events to bytes and back; old shapes are brought up to date here."""

import msgspec

from actors.events import ApprovalEvent, RunEvent, SessionEvent, TicketEvent

_encoder = msgspec.json.Encoder()
_run_decoder: msgspec.json.Decoder[RunEvent] = msgspec.json.Decoder(RunEvent)
_approval_decoder: msgspec.json.Decoder[ApprovalEvent] = msgspec.json.Decoder(ApprovalEvent)
_session_decoder: msgspec.json.Decoder[SessionEvent] = msgspec.json.Decoder(SessionEvent)
_ticket_decoder: msgspec.json.Decoder[TicketEvent] = msgspec.json.Decoder(TicketEvent)


def encode(event: RunEvent | ApprovalEvent | TicketEvent | SessionEvent) -> bytes:
    """The stored form of *event*: one JSON object with its tag as `type`."""
    return _encoder.encode(event)


def decode_run(data: bytes) -> RunEvent:
    """The event of a run's log that *data* holds."""
    return _run_decoder.decode(data)


def decode_approval(data: bytes) -> ApprovalEvent:
    """The event of an approval's log that *data* holds."""
    return _approval_decoder.decode(data)


def decode_session(data: bytes) -> SessionEvent:
    """The event of a session's log that *data* holds."""
    return _session_decoder.decode(data)


def decode_ticket(data: bytes) -> TicketEvent:
    """The event of a ticket's log that *data* holds."""
    return _ticket_decoder.decode(data)
