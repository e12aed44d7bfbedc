"""Messages of a command that stops waiting (Ctrl-C, --timeout): what the broker still does, how to watch or end it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from diamant.broker.client.admin import AdminError, path_step
from diamant.broker.commands.terminal.failures import EXIT_INTERRUPTED, fail, wants_json
from diamant.broker.commands.terminal.progress_text import progress_text

if TYPE_CHECKING:
    from diamant.broker.commands.terminal.asked import Asked

LOOK_TIMEOUT_S = 3.0
"""The time that Ctrl-C waits for the broker's account of the job."""


def fail_interrupted(asked: Asked) -> NoReturn:
    """End after Ctrl-C."""
    if not asked.has_begun:
        fail("interrupted", EXIT_INTERRUPTED)
    if asked.job is None:
        hints = {"what runs there": asked.command("status"), "what is in progress": asked.command("cancel")}
        _end("interrupted before the broker has answered: if it has begun, it continues there", EXIT_INTERRUPTED, hints)
    try:
        job = asked.admin.call("GET", f"/v1/jobs/{path_step(asked.job)}", timeout_s=LOOK_TIMEOUT_S)
    except AdminError as error:
        hints = {"what runs there": asked.command("status")}
        _end(f"interrupted; job {asked.job} continues if the broker does: {error}", EXIT_INTERRUPTED, hints)
    message, hints = what_goes_on(asked, job)
    _end(f"interrupted; {message}", EXIT_INTERRUPTED, hints, job=job["id"], undertaking=job["undertaking"])


def fail_in_time(asked: Asked, error: AdminError, exit_code: int) -> NoReturn:
    """End after --timeout: the error says what was not done, the lines below it what still runs."""
    hints: dict[str, str] = {}
    if asked.job is not None:
        try:
            job = asked.admin.call("GET", f"/v1/jobs/{path_step(asked.job)}", timeout_s=LOOK_TIMEOUT_S)
            _, hints = what_goes_on(asked, job)
        except AdminError:
            pass  # The error at hand says what there is to say.
    _end(str(error), exit_code, hints, code=error.code)


def what_goes_on(asked: Asked, job: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    """Return a sentence about a job, and commands by what they are good for."""
    job_id, verb = job["undertaking"], job["verb"].partition("/v1/")[2]
    hints = {}
    if job_id is not None:
        noun = "redaction" if verb == "redact" else "erasure"
        hints["its certificate, once it is there"] = asked.command("certificates", job_id)
        if job["state"] == "done":
            return f"{noun} {job_id} was certified by then", hints
        hints["how far it is"] = asked.command("status")
        hints["to end it"] = asked.command("cancel", job_id, "--reason", "interrupted")
        if job["state"] == "failed":
            return f"{noun} {job_id}: {job['error']['error']}", hints
        return f"{noun} {job_id} continues in the broker ({progress_text(job['progress'])})", hints
    if job["state"] != "running":
        told = "was done by then" if job["state"] == "done" else f"had failed by then: {job['error']['error']}"
        return f"{verb} {told}", hints
    hints["how far it is"] = asked.command("status")
    if job["can_be_ended"]:
        hints["to end it"] = asked.command("cancel", job["id"])
    return f"{verb} continues in the broker as job {job['id']} ({progress_text(job['progress'])})", hints


def _end(message: str, exit_code: int, hints: Mapping[str, str], **fields: Any) -> NoReturn:
    if not wants_json():
        message += "".join(f"\n  {what}: {command}" for what, command in hints.items())
    fail(message, exit_code, hints=hints, **fields)
