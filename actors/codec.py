"""Events to bytes and back; old shapes are brought up to date here."""

import msgspec

from actors.events import ApprovalEvent, HostKeyEvent, RunEvent, SessionEvent, TicketEvent

_encoder = msgspec.json.Encoder()
_run_decoder: msgspec.json.Decoder[RunEvent] = msgspec.json.Decoder(RunEvent)
_approval_decoder: msgspec.json.Decoder[ApprovalEvent] = msgspec.json.Decoder(ApprovalEvent)
_host_key_decoder: msgspec.json.Decoder[HostKeyEvent] = msgspec.json.Decoder(HostKeyEvent)
_session_decoder: msgspec.json.Decoder[SessionEvent] = msgspec.json.Decoder(SessionEvent)
_ticket_decoder: msgspec.json.Decoder[TicketEvent] = msgspec.json.Decoder(TicketEvent)


def encode(event: RunEvent | ApprovalEvent | TicketEvent | SessionEvent | HostKeyEvent) -> bytes:
    """The stored form of *event*: one JSON object with its tag as `type`."""
    return _encoder.encode(event)


def decode_run(data: bytes) -> RunEvent:
    """The event of a run's log that *data* holds."""
    return _run_decoder.decode(data)


def is_of_run(data: bytes) -> bool:
    """Whether *data* is the first event of a run's log, as far as its tag says."""
    return data.startswith(b'{"type":"run.accepted"')


def decode_approval(data: bytes) -> ApprovalEvent:
    """The event of an approval's log that *data* holds."""
    return _approval_decoder.decode(data)


def decode_session(data: bytes) -> SessionEvent:
    """The event of a session's log that *data* holds."""
    return _session_decoder.decode(data)


def decode_ticket(data: bytes) -> TicketEvent:
    """The event of a ticket's log that *data* holds."""
    return _ticket_decoder.decode(data)


def decode_host_key(data: bytes) -> HostKeyEvent:
    """The event of a Host key's log that *data* holds."""
    return _host_key_decoder.decode(data)
