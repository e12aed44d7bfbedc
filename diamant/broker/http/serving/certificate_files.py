"""Certificates over HTTP, as pages and archives: `/v1/certificates/{id}/page`, `/v1/certificates/{id}/bundle`."""

from __future__ import annotations

import json
from base64 import b64encode
from hashlib import sha256
from io import BytesIO

from aiohttp import web

from diamant.broker.erasure.certification.erasure_requests import CertificateRequest
from diamant.broker.http.serving.authorization import CERTIFICATES
from diamant.broker.http.serving.route import Call, Route
from diamant.broker.operations.calls.parameters import params_of


async def page(call: Call) -> web.Response:
    """Return one certificate as a page."""
    from diamant.cleaner.papers.paper_page import page_of

    certificates, problem = call.services.certificates(), ""
    if call.query["as_it_is"]:
        kept = await certificates.kept(call.path["id"])
        found, problem = kept.certificate, kept.problem
    else:
        found = await certificates.last(call.path["id"])
    text = page_of(found, problem, "" if problem else "bundle")
    return web.Response(text=text, content_type="text/html", charset="utf-8", headers=_headers(text))


async def bundle(call: Call) -> web.Response:
    """Return the files for checking one certificate's signature, as a ZIP archive."""
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
    """Return the security headers of a standalone page. They allow only the page's own style, identified by its digest."""
    style = text.partition("<style>")[2].partition("</style>")[0]
    digest = b64encode(sha256(style.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return {"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}


_AS_IT_IS = params_of(CertificateRequest)[1]

ROUTES = (
    Route(
        "GET",
        "/v1/certificates/{id}/page",
        page,
        "The same as an HTML page.",
        query=(_AS_IT_IS,),
        permission=CERTIFICATES,
    ),
    Route(
        "GET",
        "/v1/certificates/{id}/bundle",
        bundle,
        "The same as a ZIP archive for auditors: the certificate, the signed bytes, the signature, and the public key as PEM.",
        permission=CERTIFICATES,
    ),
)
