"""The kinds of actors, as the shell needs them."""

import msgspec

from actors import codec, run
from actors.companions import companions
from actors.decider import Kind
from actors.events import RunEvent

_run_decoder: msgspec.json.Decoder[run.State] = msgspec.json.Decoder(run.State)

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
    freeze=msgspec.json.encode,
    thaw=_run_decoder.decode,
    shape="run.3",
)
