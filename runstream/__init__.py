"""Runstream: a host for agent runs whose truth is a Redis stream.

`async with runstream.open(settings) as host:` gives a host inside a program; `host.app` is its ASGI application.
"""

from runstream.host import Host
from runstream.settings import Settings, SettingsError
from runstream.wiring import open_settings as open  # noqa: A004 - read as `runstream.open`

__all__ = ["Host", "Settings", "SettingsError", "open"]
