"""Whether another process already holds the private server of a state folder; then we join it as a second node."""

import fcntl

import anyio
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from runstream.settings import RedisSettings, Settings


class _Record(Struct):
    """What the holder leaves in `server.json`, as far as it concerns us."""

    socket: str


async def joined(settings: Settings) -> Settings:
    """Return *settings*, or those of a second node on the private server that another process holds."""
    if settings.profile != "local":
        return settings
    folder = anyio.Path(settings.state_dir)
    if not await _held(folder):
        return settings
    try:
        record = msgspec.json.decode(await (folder / "server.json").read_bytes(), type=_Record)
    except (OSError, msgspec.DecodeError):
        return settings
    here = await (anyio.Path(folder) / record.socket).absolute()
    redis = RedisSettings(socket=settings.state_dir.__class__(here))
    return replace(settings, profile="standard", redis=redis)


async def _held(folder: anyio.Path) -> bool:
    """Tell whether a living process has the folder's lock."""
    try:
        async with await (folder / "host.lock").open("r") as lock:
            fcntl.flock(lock.wrapped.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
