"""The login, which keeps the broker's token in a cookie that scripts cannot read and other sites cannot send."""

from __future__ import annotations

from aiohttp import web

from diamant.broker.http.page.making.rendering import HEADERS, refused, view
from diamant.broker.http.serving.authorization import OPEN
from diamant.broker.http.serving.route import Call, Route
from diamant.broker.http.serving.token import COOKIE
from diamant.broker.operation_errors import NotAllowed
from diamant.broker.operations.calls.parameters import Param


async def show(call: Call) -> web.StreamResponse:
    """Return the form."""
    return refused(401, "You need the broker's token to view records or change data.")


async def login(call: Call) -> web.StreamResponse:
    """Keep a valid token in a cookie until the browser is closed. Raises NotAllowed for an invalid token."""
    token = call.fields["token"].strip()
    refusal = call.token.refusal(None, token) if call.token is not None else None
    if refusal is not None:
        raise NotAllowed(refusal[1])
    response = web.json_response({"is_logged_in": True}, headers=HEADERS)
    response.set_cookie(COOKIE, token, httponly=True, samesite="Strict", path="/", secure=call.request.secure)
    return response


ROUTES = (
    view("/login", show, "The form for the token.", OPEN),
    Route(
        "POST",
        "/login",
        login,
        "Keep the token in a cookie.",
        fields=(Param("token", "string", "The token.", is_required=True),),
        refuse=refused,
        permission=OPEN,
    ),
)
