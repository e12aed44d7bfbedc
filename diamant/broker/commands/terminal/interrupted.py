"""Messages of a command that stops waiting (Ctrl-C, --timeout): the state of its job, and commands to watch or cancel it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from diamant.broker.client.admin import AdminError, path_step
from diamant.broker.commands.terminal.failures import fail, wants_json
from diamant.broker.commands.terminal.progress_text import progress_text

if TYPE_CHECKING:
    from diamant.broker.commands.terminal.asked import Asked

LOOK_TIMEOUT_S = 3.0
"""The time to wait, after Ctrl-C, for the state of the job."""


def fail_interrupted(asked: Asked) -> NoReturn:
    """Exit after Ctrl-C."""
    if not asked.has_begun:
        fail("interrupted", "interrupted")
    if asked.job is None:
        hints = {"running jobs": asked.command("status"), "pending jobs": asked.command("cancel")}
        _end("interrupted before the broker answered: if the job has started, it continues", "interrupted", hints)
    try:
        job = asked.admin.call("GET", f"/v1/jobs/{path_step(asked.job)}", timeout=LOOK_TIMEOUT_S)
    except AdminError as error:
        hints = {"running jobs": asked.command("status")}
        _end(f"interrupted; job {asked.job} continues if the broker does: {error}", "interrupted", hints)
    message, hints = describe_job(asked, job)
    _end(f"interrupted; {message}", "interrupted", hints, job=job["id"], undertaking=job["undertaking"])


def fail_in_time(asked: Asked, error: AdminError) -> NoReturn:
    """Exit after --timeout. The error says what is unfinished; the lines below it show how to follow the job."""
    hints: dict[str, str] = {}
    if asked.job is not None:
        try:
            job = asked.admin.call("GET", f"/v1/jobs/{path_step(asked.job)}", timeout=LOOK_TIMEOUT_S)
            _, hints = describe_job(asked, job)
        except AdminError:
            pass  # `error` alone is reported.
    _end(str(error), error.code, hints)


def describe_job(asked: Asked, job: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    """Return a sentence about a job, and commands by their purpose."""
    job_id, verb = job["undertaking"], job["verb"].partition("/v1/")[2]
    hints = {}
    if job_id is not None:
        noun = "redaction" if verb == "redact" else "erasure"
        hints["certificate, once issued"] = asked.command("certificates", job_id)
        if job["state"] == "done":
            return f"{noun} {job_id} has been certified", hints
        hints["progress"] = asked.command("status")
        hints["to cancel"] = asked.command("cancel", job_id, "--reason", "interrupted")
        if job["state"] == "failed":
            return f"{noun} {job_id}: {job['error']['error']}", hints
        return f"{noun} {job_id} continues in the broker ({progress_text(job['progress'])})", hints
    if job["state"] != "running":
        told = "is done" if job["state"] == "done" else f"has failed: {job['error']['error']}"
        return f"{verb} {told}", hints
    hints["progress"] = asked.command("status")
    if job["can_be_ended"]:
        hints["to cancel"] = asked.command("cancel", job["id"])
    return f"{verb} continues in the broker as job {job['id']} ({progress_text(job['progress'])})", hints


def _end(message: str, code: str, hints: Mapping[str, str], **fields: Any) -> NoReturn:
    if not wants_json():
        message += "".join(f"\n  {what}: {command}" for what, command in hints.items())
    fail(message, code, hints=hints, **fields)
