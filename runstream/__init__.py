"""Runstream: a host for agent runs whose truth is a Redis stream.

`async with runstream.open(settings) as host:` gives a host inside a program; `host.app` is its ASGI application.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runstream.host import Host
    from runstream.settings import Settings, SettingsError
    from runstream.wiring import open_settings as open  # noqa: A004 - read as `runstream.open`
else:
    _PLACES = {
        "Host": ("runstream.host", "Host"),
        "Settings": ("runstream.settings", "Settings"),
        "SettingsError": ("runstream.settings", "SettingsError"),
        "open": ("runstream.wiring", "open_settings"),
    }

    def __getattr__(name: str) -> Any:
        """What the package offers, loaded when it is asked for: a command is to hear Ctrl-C while all this loads."""
        if name not in _PLACES:
            raise AttributeError(f"module 'runstream' has no attribute {name!r}")
        module, attribute = _PLACES[name]
        return getattr(import_module(module), attribute)


__all__ = ["Host", "Settings", "SettingsError", "open"]
