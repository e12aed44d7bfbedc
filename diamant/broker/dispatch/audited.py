"""Handlers of APIs that change state: their outcome is in the audit log before the answer is sent.

The line is made from the request and the encoded answer, so it matches the answer, including a denial by the guard.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable
from functools import partial
from typing import Any, cast

from diamant.broker.dispatch.api_row import Row
from diamant.broker.dispatch.dispatcher import Handler
from diamant.broker.dispatch.guard import WithBody
from diamant.broker.network.api import Answer, RequestContext
from diamant.broker.security.audit.audit_log import FAILED, AuditedAction, AuditLog, Lines
from diamant.protocol.wire import apis


def audited(key: int, row: Row, audit: AuditLog, handle: Handler) -> Handler:
    """Return a handler of API `key` that writes audit lines, if the audit log is in use."""

    def handle_and_log(context: RequestContext, decoded: Any) -> Answer:
        if not audit.is_wanted:
            return handle(context, decoded)
        request = decoded.request if isinstance(decoded, WithBody) else decoded
        try:
            answer = handle(context, decoded)
        except BaseException:
            audit.append(partial(_failed, key, context))
            raise
        return _once_logged(key, row, audit, context, request, answer)

    return handle_and_log


async def _once_logged(
    key: int, row: Row, audit: AuditLog, context: RequestContext, request: object, answer: Answer
) -> Any:
    try:
        body = await cast("Awaitable[Any]", answer) if inspect.isawaitable(answer) else answer
    except BaseException:
        audit.append(partial(_failed, key, context))
        raise
    await audit.written(partial(_lines, key, row, context, request, body))
    return body


def _lines(key: int, row: Row, context: RequestContext, request: object, body: Any) -> Lines:
    """Make the lines, in the thread of the audit log, so that a large answer delays no client."""
    from diamant.broker.dispatch.audited_actions import audited_actions
    from diamant.protocol.wire.message_fields import decode_response_fields, message_fields

    joined = b"".join(body) if isinstance(body, list | tuple) else bytes(body)
    response = decode_response_fields(key, context.api_version, joined)
    return audited_actions(row, _client_and_api(key, context), message_fields(request), response)


def _failed(key: int, context: RequestContext) -> Lines:
    return ((AuditedAction(*_client_and_api(key, context)), FAILED),)


def _client_and_api(key: int, context: RequestContext) -> tuple[str, str, str]:
    connection = context.connection
    return str(connection.principal), connection.host, apis.API_NAMES[key]
