"""Erasures and their certificates over HTTP: `/v1/erase`, `/v1/verify`, `/v1/certificates`. docs/how-to/erase.md has examples.

The key is in the body, not in the path, which proxies write to their access logs.
"""

from __future__ import annotations

import json
from base64 import b64encode
from hashlib import sha256
from io import BytesIO
from typing import Any

from aiohttp import web

from diamant.broker.dispatch.operation_row import MAX_KEYED_BODY_BYTES
from diamant.broker.erasure.jobs.requests import EraseRequest
from diamant.broker.errors import BadArgument, NotPossible
from diamant.broker.http.serving.route import Call, Route
from diamant.broker.operations.calls.parameters import Param
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
    """List certificates and pending jobs."""
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
    """Return one certificate, or the failure of its check."""
    if call.query["as_it_is"]:
        return (await call.services.certificates().kept(call.path["id"])).certificate
    return await call.services.certificates().last(call.path["id"])


async def page(call: Call) -> web.Response:
    """Return one certificate as a page."""
    from diamant.cleaner.evidence.certificates.page import certificate_page

    certificates, problem = call.services.certificates(), ""
    if call.query["as_it_is"]:
        kept = await certificates.kept(call.path["id"])
        found, problem = kept.certificate, kept.problem
    else:
        found = await certificates.last(call.path["id"])
    text = certificate_page(found, problem, "" if problem else "bundle")
    return web.Response(text=text, content_type="text/html", charset="utf-8", headers=_headers(text))


async def bundle(call: Call) -> web.Response:
    """Return what checks one certificate's signature, as a ZIP archive."""
    from zipfile import ZipFile

    from diamant.cleaner.evidence.certificates.certificate import bundle_of

    found = await call.services.certificates().last(call.path["id"])
    name = f"certificate-{found['id']}"
    archive = BytesIO()
    with ZipFile(archive, "w") as zipped:
        zipped.writestr(f"{name}.json", json.dumps(found, indent=1, sort_keys=True))
        for file, content in bundle_of(found).files(f"{name}.signed").items():
            zipped.writestr(file, content)
    headers = {"Content-Disposition": f'attachment; filename="{name}.zip"', "X-Content-Type-Options": "nosniff"}
    return web.Response(body=archive.getvalue(), content_type="application/zip", headers=headers)


def _headers(text: str) -> dict[str, str]:
    """Return the security policy of a standalone page: it allows the page's own style, by digest, and nothing else."""
    style = text.partition("<style>")[2].partition("</style>")[0]
    digest = b64encode(sha256(style.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return {"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}


_AS_IT_IS = Param(
    "as_it_is",
    "boolean",
    "Return it even if its signature check fails, or cannot be done; a page says so in its first line.",
    default=False,
)

ROUTES = (
    Route(
        "POST",
        "/v1/erase",
        erase,
        "Erase a key from topics, and certify the removal.",
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
                "The reason. The certificate records it, so it must contain no key and no value.",
                is_required=True,
            ),
            Param("reference", "string", "The case number of the request, recorded in the certificate.", default=""),
            Param("timeout_ms", "integer", "How long the removal of the values may take.", most=366 * 24 * 3_600_000),
            Param(
                "now",
                "boolean",
                "Also remove the tombstones before their horizon, unless groups have not read them. Then the tombstones stay, "
                "`is_now_refused` is true and `groups_behind` lists the groups; `POST /v1/erase/{id}/now` continues.",
                default=False,
            ),
            Param(
                "confirm_groups_behind",
                "boolean",
                "With `now`: remove the tombstones even if groups have not read them. Those groups never see the deletion.",
                default=False,
            ),
            Param("force", "boolean", "Ignore min.compaction.lag.ms.", default=False),
            Param("engine", "string", "The engine, as for `POST /v1/compact`.", choices=ENGINES),
        ),
        answer="The state, the due time of the next certificate, the certificate, and the public key.",
    ),
    Route(
        "POST",
        "/v1/erase/{id}/now",
        erase_now,
        "Remove the tombstones of an erasure before their horizon, and certify that the key itself is gone.",
        changes_data=True,
        is_job=True,
        fields=(
            Param(
                "confirm_groups_behind",
                "boolean",
                "Proceed even if groups have not read the tombstones and will never see the deletion. Otherwise such groups "
                "prevent any change: `is_now_refused` is true and `groups_behind` lists them.",
                default=False,
            ),
            Param("timeout_ms", "integer", "How long it may take.", most=366 * 24 * 3_600_000),
        ),
        answer="As for `POST /v1/erase`, for the same erasure.",
    ),
    Route(
        "POST",
        "/v1/verify",
        verify,
        "Check a certificate against the broker's current data.",
        is_job=True,
        can_be_ended=True,
        max_body_bytes=MAX_KEYED_BODY_BYTES,
        fields=(
            Param("certificate", "object", "The certificate.", is_required=True),
            Param("public_key", "string", "The trusted public key, in hexadecimal."),
            Param("key", "key", "The erased key, to search for it."),
            Param("where", "string", "The `where` of a redaction, to search for its records again."),
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
        "The last certificate of an erasure or redaction. Refused (409, `not-genuine`) if it has changed since it was signed.",
        query=(_AS_IT_IS,),
    ),
    Route("GET", "/v1/certificates/{id}/page", page, "The same as an HTML page.", query=(_AS_IT_IS,)),
    Route(
        "GET",
        "/v1/certificates/{id}/bundle",
        bundle,
        "The same as a ZIP archive for auditors: the certificate, the signed bytes, the signature, and the public key as PEM.",
    ),
)
