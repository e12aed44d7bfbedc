"""Cancellation of pending erasures and redactions: `/v1/cancel`. docs/how-to/erase.md has examples."""

from __future__ import annotations

from typing import Any

from diamant.broker.erasure.jobs.cancel import cancel_job
from diamant.broker.http.serving.route import Call, Route
from diamant.broker.operations.calls.parameters import Param


async def cancel(call: Call) -> Any:
    """Cancel an erasure or redaction."""
    return await cancel_job(call.services.jobs, call.fields["id"], reason=call.fields["reason"])


ROUTES = (
    Route(
        "POST",
        "/v1/cancel",
        cancel,
        "Cancel a pending erasure or redaction.",
        changes_data=True,
        is_job=True,
        fields=(
            Param("id", "string", "Its id, from `GET /v1/certificates` or an error.", is_required=True),
            Param(
                "reason",
                "string",
                "The reason. The certificate records it, so it must contain no key and no value.",
                is_required=True,
            ),
        ),
        answer="As for the cancelled call, with the state `not-certified`. The certificate's `ended` records the cancellation.",
    ),
)
