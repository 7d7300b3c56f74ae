"""Pages of events: of a job, which must be one snapshot of it (jobs §9), and of a run (extensions §1).

Nothing here waits.
"""

from collections.abc import Iterable
from typing import Any

from msgspec import UNSET

from runstream_client.asked import Asked, needed, same
from runstream_client.events import RunEvent, RunFailed
from runstream_client.reading import EventRules, Unsupported, number_of
from runstream_client.records import ENDS_OF_A_JOB, Job, JobPage, RawPage, RawRunPage, RunPage
from runstream_client.shapes import shaped
from runstream_client.strict_json import Unsound

PAGE_EVENTS_MAX = 100


def job_page(job_id: str, after: int, limit: int | None, value: Any) -> JobPage:
    """*value* as the page that was asked for.

    Raises:
        Unsound: it is none.
    """
    raw = shaped(RawPage, value)
    job = raw.job
    same(job.id, job_id, "job")
    needed(len(raw.events) <= min(limit or PAGE_EVENTS_MAX, PAGE_EVENTS_MAX), "more events than asked")
    rules = EventRules(
        Asked({"provider": job.provider, "model": job.model}, of_job=True), run_id=job.run_id, sequence=after
    )
    events = tuple(_event_of(rules, one) for one in raw.events)
    for event in events:
        _check_against(job, event)
    same(raw.next_cursor, rules.sequence, "cursor")
    needed(raw.next_cursor <= job.cursor, "events that the job does not have")
    same(raw.has_more, raw.next_cursor < job.cursor, "word about what follows")
    needed(events or not raw.has_more, "an empty page before the end")
    return JobPage(job=job, events=events, next_cursor=raw.next_cursor, has_more=raw.has_more)


def run_page(run_id: str, cursor: str, value: Any) -> RunPage:
    """*value* as the page of a run, about whose request nothing is known here.

    Raises:
        Unsound: it is none.
    """
    raw = shaped(RawRunPage, value)
    same(raw.run_id, run_id, "run")
    rules = EventRules(Asked(None), run_id=run_id, sequence=number_of(cursor))
    events = tuple(_known(rules, raw.events))
    same(number_of(raw.cursor), rules.sequence, "cursor")
    needed(raw.events or not raw.has_more, "an empty page before the end")
    needed(not any(event.ends for event in events[:-1]), "events after the last one")
    needed(not (raw.has_more and events and events[-1].ends), "more after the last event")
    return RunPage(run_id=run_id, state=raw.state, events=events, cursor=raw.cursor, has_more=raw.has_more)


def _known(rules: EventRules, events: Iterable[Any]) -> Iterable[RunEvent]:
    for one in events:
        try:
            event = rules.accept(one)
        except Unsupported as error:
            raise Unsound(f"{error} is required, and unknown here") from None
        if event is not None:
            yield event


def _event_of(rules: EventRules, value: Any) -> RunEvent:
    """An event of a page, where none may be unknown, even if it is advisory."""
    found = list(_known(rules, [value]))
    needed(found, "an unknown event")
    return found[0]


def _check_against(job: Job, event: RunEvent) -> None:
    last = event.sequence == job.cursor and job.ended
    needed(event.ends == last, "a last event exactly at the end")
    if not last:
        return
    same(event.type, ENDS_OF_A_JOB[job.state], "end than the job's")
    uncertain = isinstance(event, RunFailed) and event.error.outcome is not UNSET
    needed(job.state != "interrupted" or uncertain, "an interruption that is not uncertain")
