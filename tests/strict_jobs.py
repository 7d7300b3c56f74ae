"""What a strict client accepts as a job, and as a page of its events.

Nothing here waits or reads a clock.
"""

from tests.strict_events import TERMINAL, job_event
from tests.strict_values import (
    UUID,
    Json,
    Object,
    boolean,
    count,
    echoes,
    integer,
    items,
    member,
    members,
    millis_z,
    need,
    one_of,
    shape,
    string,
    text,
)

ENDED: Object = {
    "completed": "run.completed",
    "failed": "run.failed",
    "cancelled": "run.cancelled",
    "interrupted": "run.failed",
}
_JOB = shape(
    {
        "id": text(36, 36, UUID),
        "runId": text(36, 36, UUID),
        "provider": text(1),
        "model": text(1),
        "state": one_of("queued", "running", *ENDED),
        "cursor": integer(),
        "cancelRequested": boolean,
        "createdAt": millis_z,
        "updatedAt": millis_z,
    },
    {"expiresAt": millis_z},
)


def job_info(value: Json) -> None:
    """Nothing, for a job whose cursor and times agree with its state."""
    _JOB(value)
    job = members(value)
    need(job["state"] != "queued" or job["cursor"] == 0, "a queued job with events")
    need(job["state"] not in ENDED or count(job["cursor"]) >= 2, "an ended job without its two events")
    need(string(job["updatedAt"]) >= string(job["createdAt"]), "updated before created")
    need(("expiresAt" in job) == (job["state"] in ENDED), "an expiry exactly if ended")
    need("expiresAt" not in job or string(job["expiresAt"]) > string(job["updatedAt"]), "expired when updated")


def job_submitted(request: Object, value: Json) -> None:
    """Nothing, for a job of the provider and model that were asked."""
    job_info(value)
    echoes(members(request["request"]), value, "provider", "model")


def job(request: Object, value: Json) -> None:
    """Nothing, for the job that was named."""
    job_info(value)
    echoes(request, value, "id")


def job_page(request: Object, value: Json) -> None:
    """Nothing, for a page that is one snapshot of the job and its events from `after` on."""
    job, events = members(member(value, "job")), items(member(value, "events"))
    job_info(job)
    after, cursor = count(request["after"]), count(job["cursor"])
    need(job["id"] == request["id"], "another job")
    need(len(events) <= min(count(request.get("limit", 100)), 100), "more events than asked")
    for sequence, event in enumerate(events, after + 1):
        _job_item(job, sequence, event)
    following = count(member(value, "nextCursor"))
    need(following == after + len(events) and following <= cursor, "another cursor")
    boolean(member(value, "hasMore"))
    need(member(value, "hasMore") == (following < cursor), "more, or not")
    need(bool(events) or following == cursor, "an empty page before the end")


def _job_item(job: Object, sequence: int, value: Json) -> None:
    event = job_event(job, sequence, value)
    state, kind = string(job["state"]), string(event["type"])
    need(sequence <= count(job["cursor"]), "an event beyond the cursor")
    last = sequence == job["cursor"] and state in ENDED
    need((kind in TERMINAL) == last, "a terminal event, exactly at the end")
    need(not last or kind == ENDED[state], "an end that is not the job's")
    uncertain = kind == "run.failed" and members(event["error"]).get("outcome") == "uncertain"
    need(state != "interrupted" or not last or uncertain, "an interruption that is not uncertain")
