"""Models that the host can call: one file for each vendor, a mock, scripts for tests and demos, and discovery."""

from providers.discovery import Discovery, Intervals
from providers.mock import Mock, conformance
from providers.script import InvalidScript, Script, scripts
from providers.scripted import Scripted, described

__all__ = [
    "Discovery",
    "Intervals",
    "InvalidScript",
    "Mock",
    "Script",
    "Scripted",
    "conformance",
    "described",
    "scripts",
]
