"""The kinds of actors, as the shell needs them."""

import msgspec

from actors import codec, host_key, run, session, upkeep
from actors.companions import companions
from actors.decider import Kind
from actors.events import HostKeyEvent, RunEvent, SessionEvent

_run_decoder: msgspec.json.Decoder[run.State] = msgspec.json.Decoder(run.State)
_host_key_decoder: msgspec.json.Decoder[host_key.State] = msgspec.json.Decoder(host_key.State)
_session_decoder: msgspec.json.Decoder[session.State] = msgspec.json.Decoder(session.State)

RUN: Kind[run.State, run.Command, RunEvent] = Kind(
    name="run",
    initial=run.New(),
    decide=run.decide,
    evolve=run.evolve,
    standing=upkeep.standing,
    encode=codec.encode,
    decode=codec.decode_run,
    overflow=run.overflow,
    companions=companions,
    is_slow=run.is_slow,
    feed_max=upkeep.feed_max,
    epitaph=upkeep.epitaph,
    freeze=msgspec.json.encode,
    thaw=_run_decoder.decode,
    shape="run.5",
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

HOST_KEY: Kind[host_key.State, host_key.Command, HostKeyEvent] = Kind(
    name="host_key",
    initial=host_key.New(),
    decide=host_key.decide,
    evolve=host_key.evolve,
    standing=host_key.standing,
    encode=codec.encode,
    decode=codec.decode_host_key,
    overflow=lambda _code: host_key.Forget(),
    companions=lambda _actor, _before, _event, _after: (),
    is_slow=lambda _state, _command: False,
    feed_max=lambda _state: 0,
    epitaph=lambda _state, _now_ms: b"",
    freeze=msgspec.json.encode,
    thaw=_host_key_decoder.decode,
    shape="host_key.1",
)
