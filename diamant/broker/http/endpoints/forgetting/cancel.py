"""Ending erasures and redactions that are not over: `/v1/cancel`. docs/how-to/erase.md has examples."""

from __future__ import annotations

from typing import Any

from diamant.broker.erasure.jobs.cancel import cancel_job
from diamant.broker.http.serving.route import Call, Param, Route


async def cancel(call: Call) -> Any:
    """End one."""
    return await cancel_job(call.services.jobs, call.fields["id"], reason=call.fields["reason"])


ROUTES = (
    Route(
        "POST",
        "/v1/cancel",
        cancel,
        "End an erasure or a redaction without finishing it.",
        changes_data=True,
        is_job=True,
        fields=(
            Param("id", "string", "Its id, from `GET /v1/certificates` or an error.", is_required=True),
            Param(
                "reason",
                "string",
                "The reason. It stands in the certificate, so it must hold no key and no value.",
                is_required=True,
            ),
        ),
        answer="As of the call that is ended: the state `not-certified`, and the certificate, whose `ended` says what ended it.",
    ),
)
