"""The kinds of actors, as the shell needs them."""

import msgspec

from actors import codec, run, session
from actors.companions import companions
from actors.decider import Kind
from actors.events import RunEvent, SessionEvent

_run_decoder: msgspec.json.Decoder[run.State] = msgspec.json.Decoder(run.State)
_session_decoder: msgspec.json.Decoder[session.State] = msgspec.json.Decoder(session.State)

RUN: Kind[run.State, run.Command, RunEvent] = Kind(
    name="run",
    initial=run.New(),
    decide=run.decide,
    evolve=run.evolve,
    standing=run.standing,
    encode=codec.encode,
    decode=codec.decode_run,
    overflow=run.overflow,
    companions=companions,
    is_slow=run.is_slow,
    feed_max=run.feed_max,
    epitaph=run.epitaph,
    freeze=msgspec.json.encode,
    thaw=_run_decoder.decode,
    shape="run.4",
)

SESSION: Kind[session.State, session.Command, SessionEvent] = Kind(
    name="session",
    initial=session.New(),
    decide=session.decide,
    evolve=session.evolve,
    standing=session.standing,
    encode=codec.encode,
    decode=codec.decode_session,
    overflow=lambda _code: session.Delete(),
    companions=lambda _actor, _before, _event, _after: (),
    is_slow=lambda _state, _command: False,
    feed_max=lambda _state: 0,
    epitaph=lambda _state, _now_ms: b"",
    freeze=msgspec.json.encode,
    thaw=_session_decoder.decode,
    shape="session.1",
)
