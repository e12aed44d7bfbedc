"""Redactions over HTTP: `/v1/redact`. Their certificates are at `/v1/certificates`. docs/how-to/redact.md has examples.

The condition is in the body, not in the path, which proxies write to their access logs.
"""

from __future__ import annotations

from typing import Any

from diamant.broker.dispatch.operation_row import MAX_KEYED_BODY_BYTES
from diamant.broker.erasure.jobs.requests import RedactRequest
from diamant.broker.http.serving.route import Call, Route
from diamant.broker.operations.calls.parameters import Param


async def redact(call: Call) -> Any:
    """Remove the matching records."""
    fields = call.fields
    request = RedactRequest(
        topic=fields["topic"],
        where=fields["where"],
        reason=fields["reason"],
        reference=fields["reference"],
        is_all_agreed=fields["yes_all"],
        undecided=fields["undecided"],
        timeout_ms=fields["timeout_ms"],
    )
    return await (await call.services.redactions.loaded()).redact(request, call.progress)


ROUTES = (
    Route(
        "POST",
        "/v1/redact",
        redact,
        "Remove the matching records of a topic, and certify the removal.",
        changes_data=True,
        is_job=True,
        can_be_ended=True,
        max_body_bytes=MAX_KEYED_BODY_BYTES,
        fields=(
            Param("topic", "string", "The topic, compacted or not; all its partitions.", is_required=True),
            Param(
                "where",
                "string",
                'The records to remove: key == "customer-42", header.user == "42", value.customer.email == "ada@example.com".',
                is_required=True,
            ),
            Param(
                "reason",
                "string",
                "The reason. The certificate records it, so it must contain no key and no value.",
                is_required=True,
            ),
            Param("reference", "string", "The case number of the request, recorded in the certificate.", default=""),
            Param("yes_all", "boolean", "Continue even if every record of the topic matches.", default=False),
            Param(
                "undecided",
                "string",
                "How to treat values that are not JSON but contain the searched text: certify nothing, remove them, or keep "
                "them and list them in the certificate.",
                default="hold",
                choices=("hold", "remove", "keep"),
            ),
            Param("timeout_ms", "integer", "How long it may take.", most=366 * 24 * 3_600_000),
        ),
        answer="The state, the number of removed records, the certificate, and the public key.",
    ),
)
