"""Erasures and their certificates over HTTP: `/v1/erase`, `/v1/verify`, `/v1/certificates`. docs/how-to/erase.md has examples.

The key is in the body and not in the path, where access logs of proxies would keep it.
"""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from typing import Any

from aiohttp import web

from diamant.broker.client.errors import BadArgument, NotPossible
from diamant.broker.erasure.jobs.requests import EraseRequest
from diamant.broker.http.serving.json_body import MAX_KEYED_BODY_BYTES
from diamant.broker.http.serving.route import Call, Param, Route
from diamant.cleaner.rules.modes import ENGINES


async def erase(call: Call) -> Any:
    """Erase a key."""
    fields = call.fields
    request = EraseRequest(
        key=fields["key"],
        topics=tuple(sorted({*fields["topics"]})),
        reason=fields["reason"],
        reference=fields["reference"],
        is_now=fields["now"],
        is_confirmed=fields["confirm_groups_behind"],
        is_forced=fields["force"],
        engine=fields["engine"],
        timeout_ms=fields["timeout_ms"],
    )
    return await (await call.services.erasures.loaded()).erase(request, call.progress)


async def erase_now(call: Call) -> Any:
    """Resume an erasure now."""
    fields = call.fields
    return await (await call.services.erasures.loaded()).erase_now(
        call.path["id"],
        is_confirmed=fields["confirm_groups_behind"],
        timeout_ms=fields["timeout_ms"],
        progress=call.progress,
    )


async def verify(call: Call) -> Any:
    """Check a certificate."""
    text = call.fields["public_key"]
    public_key = None
    if text is not None:
        try:
            public_key = bytes.fromhex(text)
        except ValueError:
            public_key = b""
        if len(public_key) != 32:
            raise BadArgument("public_key: expected the 64 hexadecimal digits of an Ed25519 public key")
    return await call.services.certificates().verify(
        call.fields["certificate"],
        public_key=public_key,
        key=call.fields["key"],
        where=call.fields["where"],
        progress=call.progress,
    )


async def certificates(call: Call) -> dict[str, Any]:
    """List what there is."""
    kept = call.services.certificates()
    public_key = problem = None
    try:
        public_key = await kept.public_key()
    except NotPossible as error:
        problem = str(error)
    return {
        "certificates": await kept.list_all(),
        "unfinished": [one for kind in call.services.jobs for one in await kind.unfinished_on_disk()],
        "public_key": public_key,
        "key_problem": problem,
    }


async def certificate(call: Call) -> dict[str, Any]:
    """Return one, or what is wrong with it."""
    if call.query["as_it_is"]:
        return (await call.services.certificates().kept(call.path["id"])).certificate
    return await call.services.certificates().last(call.path["id"])


async def page(call: Call) -> web.Response:
    """Return one to be read by people."""
    from diamant.cleaner.evidence.certificates.page import certificate_page

    certificates, problem = call.services.certificates(), ""
    if call.query["as_it_is"]:
        kept = await certificates.kept(call.path["id"])
        found, problem = kept.certificate, kept.problem
    else:
        found = await certificates.last(call.path["id"])
    text = certificate_page(found, problem)
    return web.Response(text=text, content_type="text/html", charset="utf-8", headers=_headers(text))


def _headers(text: str) -> dict[str, str]:
    """Return the policy of a page that stands alone: its own style, known by its digest, and nothing else."""
    style = text.partition("<style>")[2].partition("</style>")[0]
    digest = b64encode(sha256(style.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return {"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}


_AS_IT_IS = Param(
    "as_it_is",
    "boolean",
    "Return it although it is not as it was signed, or cannot be checked; of a page the first line says so.",
    default=False,
)

ROUTES = (
    Route(
        "POST",
        "/v1/erase",
        erase,
        "Erase a key from topics, and certify what is gone.",
        changes_data=True,
        is_job=True,
        can_be_ended=True,
        max_body_bytes=MAX_KEYED_BODY_BYTES,
        fields=(
            Param("key", "key", "The key.", is_required=True),
            Param("topics", "strings", "Compacted topics; all their partitions are searched.", is_required=True),
            Param(
                "reason",
                "string",
                "The reason. It stands in the certificate, so it must hold no key and no value.",
                is_required=True,
            ),
            Param("reference", "string", "The request's case number; it stands in the certificate.", default=""),
            Param("timeout_ms", "integer", "How long values may take to go.", most=366 * 24 * 3_600_000),
            Param(
                "now",
                "boolean",
                "Remove the tombstone before its horizon, too, unless groups are behind it: then it stays, "
                "`is_now_refused` is true and `groups_behind` names them; `POST /v1/erase/{id}/now` continues from there.",
                default=False,
            ),
            Param(
                "confirm_groups_behind",
                "boolean",
                "With `now`: remove it even though groups have not passed it, and never will learn of the erasure.",
                default=False,
            ),
            Param("force", "boolean", "Ignore min.compaction.lag.ms.", default=False),
            Param("engine", "string", "Where to compact, as for `POST /v1/compact`.", choices=ENGINES),
        ),
        answer="The state, when the next certificate is due, the certificate, and the public key.",
    ),
    Route(
        "POST",
        "/v1/erase/{id}/now",
        erase_now,
        "Remove the tombstones of an erasure before their horizon, and certify that the key is gone, too.",
        changes_data=True,
        is_job=True,
        fields=(
            Param(
                "confirm_groups_behind",
                "boolean",
                "Even though groups have not passed them, and never will learn of the erasure. Else nothing is changed if there "
                "are such groups: `is_now_refused` is true and `groups_behind` names them.",
                default=False,
            ),
            Param("timeout_ms", "integer", "How long it may take.", most=366 * 24 * 3_600_000),
        ),
        answer="As of `POST /v1/erase`, of the same erasure.",
    ),
    Route(
        "POST",
        "/v1/verify",
        verify,
        "Check a certificate against what the broker holds now.",
        is_job=True,
        can_be_ended=True,
        max_body_bytes=MAX_KEYED_BODY_BYTES,
        fields=(
            Param("certificate", "object", "The certificate.", is_required=True),
            Param("public_key", "string", "The public key that is trusted, in hexadecimal."),
            Param("key", "key", "The key that was erased, to look for it by itself."),
            Param("where", "string", "What a redaction was about, to look for it again."),
        ),
        answer="The outcome for the signature, the segments and the claims, and what has changed since.",
    ),
    Route(
        "GET",
        "/v1/certificates",
        certificates,
        "The certificates, unfinished erasures and redactions, and the public key.",
    ),
    Route(
        "GET",
        "/v1/certificates/{id}",
        certificate,
        "The last certificate of an erasure or a redaction. Refused (409, `not-genuine`) if it is not as it was signed.",
        query=(_AS_IT_IS,),
    ),
    Route("GET", "/v1/certificates/{id}/page", page, "The same as a page for people.", query=(_AS_IT_IS,)),
)
