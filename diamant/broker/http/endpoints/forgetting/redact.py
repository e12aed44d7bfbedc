"""Redactions over HTTP: `/v1/redact`. Their certificates are at `/v1/certificates`. docs/how-to/redact.md has examples.

The description is in the body and not in the path, where access logs of proxies would keep it.
"""

from __future__ import annotations

from typing import Any

from diamant.broker.erasure.jobs.requests import RedactRequest
from diamant.broker.http.serving.json_body import MAX_KEYED_BODY_BYTES
from diamant.broker.http.serving.route import Call, Param, Route


async def redact(call: Call) -> Any:
    """Remove the records that match."""
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
        "Remove the records of a topic that match, and certify what is gone.",
        changes_data=True,
        is_job=True,
        can_be_ended=True,
        max_body_bytes=MAX_KEYED_BODY_BYTES,
        fields=(
            Param("topic", "string", "The topic, compacted or not; all its partitions.", is_required=True),
            Param(
                "where",
                "string",
                'Which records: key == "customer-42", header.user == "42", value.customer.email == "ada@example.com".',
                is_required=True,
            ),
            Param(
                "reason",
                "string",
                "The reason. It stands in the certificate, so it must hold no key and no value.",
                is_required=True,
            ),
            Param("reference", "string", "The request's case number; it stands in the certificate.", default=""),
            Param("yes_all", "boolean", "Continue even if every record of the topic matches.", default=False),
            Param(
                "undecided",
                "string",
                "What to do with values that are no JSON and may be meant: certify nothing, remove them, or keep them and list "
                "them in the certificate.",
                default="hold",
                choices=("hold", "remove", "keep"),
            ),
            Param("timeout_ms", "integer", "How long it may take.", most=366 * 24 * 3_600_000),
        ),
        answer="The state, how many records went, the certificate, and the public key.",
    ),
)
