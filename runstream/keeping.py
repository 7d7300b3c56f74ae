"""The sections of the settings that say what is kept, how much of it and how long: sessions, jobs, runs and usage."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from actors import jobs, session
from actors.usage import SAFE
from runstream.reading import Fault
from runstream.sections import Id, Many, utf16_units

_LABELS_MAX = 32
_LABEL_NAME_CHARS_MAX = 80
_LABEL_CHARS_MAX = 500


class SessionsSettings(Struct, frozen=True, kw_only=True):
    """Conversations that are kept between runs (sessions §1)."""

    retention_ms: Annotated[int, Meta(ge=1, le=2_147_483_647)]
    max_entries: Many = 1_000
    max_messages: Annotated[int, Meta(ge=2, le=100)] = 100
    max_record_bytes: Annotated[int, Meta(ge=1, le=1_000_000)] = 1_000_000

    def limits(self) -> session.Limits:
        """The bounds as the session knows them."""
        return session.Limits(
            retention_ms=self.retention_ms,
            max_entries=self.max_entries,
            max_messages=self.max_messages,
            max_record_bytes=self.max_record_bytes,
        )


class JobsSettings(Struct, frozen=True, kw_only=True):
    """Runs that nobody waits for (jobs §1)."""

    retention_ms: Annotated[int, Meta(ge=1, le=31_536_000_000)]
    max_jobs: Many = 1_000
    max_jobs_per_subject: Many = 100
    max_bytes: Annotated[int, Meta(ge=65_536, le=SAFE)] = 64_000_000
    max_job_bytes: Annotated[int, Meta(ge=16_384, le=64_000_000)] = 8_000_000
    poll_interval_ms: Annotated[int, Meta(ge=10, le=60_000)] = 250
    max_workers: Annotated[int, Meta(ge=1, le=1_000)] = 32

    def limits(self) -> jobs.Limits:
        """The bounds as the job knows them."""
        return jobs.Limits(
            retention_ms=self.retention_ms,
            max_jobs=self.max_jobs,
            max_jobs_per_subject=self.max_jobs_per_subject,
            max_bytes=self.max_bytes,
            max_job_bytes=self.max_job_bytes,
            poll_interval_ms=self.poll_interval_ms,
            max_workers=self.max_workers,
        )


class IdempotencySettings(Struct, frozen=True, kw_only=True):
    """Keyed runs."""

    enabled: bool = True
    max_entries: Annotated[int, Meta(ge=1, le=1_000_000_000)] = 100_000


class RetentionSettings(Struct, frozen=True, kw_only=True):
    """How long what has ended is kept."""

    run_days: Annotated[int, Meta(ge=1, le=3_650)] = 7
    audit_days: Annotated[int, Meta(ge=1, le=36_500)] = 365


class UsageSettings(Struct, frozen=True, kw_only=True):
    """A record of what each executed run used (runs §11)."""

    enabled: bool = True
    file: Path | None = None
    sync: bool = False
    host_id: Id | None = None
    labels: Mapping[str, str] = {}

    def faults(self) -> Iterator[Fault]:
        """Return what breaks its rules."""
        if len(self.labels) > _LABELS_MAX:
            yield Fault("labels", f"must be at most {_LABELS_MAX} labels, not {len(self.labels)}")
        for name, label in self.labels.items():
            if utf16_units(name) > _LABEL_NAME_CHARS_MAX:
                yield Fault(f"labels.{name}", f"the name of a label has at most {_LABEL_NAME_CHARS_MAX} characters")
            if utf16_units(label) > _LABEL_CHARS_MAX:
                yield Fault(f"labels.{name}", f"must be a text of at most {_LABEL_CHARS_MAX} characters")
