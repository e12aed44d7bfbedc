"""Handlers of audited APIs, which write their outcome to the audit log before the answer is sent.

Audit lines are made from the request and the encoded answer, so they agree with what the client gets, including a denial by the
guard. A request that deletes two topics, one of which is denied, produces two lines; a request denied as a whole produces one.
Names are taken from the request and the answer; keys, values, passwords and values of configurations are never read.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Iterator
from functools import partial
from itertools import chain
from typing import Any, cast

from diamant.broker.dispatch.api_row import Row, WithBody
from diamant.broker.dispatch.audit_subjects import Subjects
from diamant.broker.dispatch.dispatcher import Handler
from diamant.broker.network.api import Answer, RequestContext
from diamant.broker.security.authorization.audit_log import (
    DENIED,
    DONE,
    FAILED,
    VALIDATED,
    AuditedAction,
    AuditLog,
    Lines,
)
from diamant.protocol.errors import ErrorCode
from diamant.protocol.wire import apis
from diamant.protocol.wire.error_shape import Fields


def audited(key: int, row: Row, audit: AuditLog, handle: Handler) -> Handler:
    """Wrap the handler of API `key` so that its outcome is audited, if the audit log is in use."""

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
    """Make the audit lines. Runs in the audit log's thread, so that a large answer does not delay other clients."""
    from diamant.protocol.wire.message_fields import decode_response_fields, message_fields

    joined = b"".join(body) if isinstance(body, list | tuple) else bytes(body)
    response = decode_response_fields(key, context.api_version, joined)
    return audited_actions(row, _client_and_api(key, context), message_fields(request), response)


def _failed(key: int, context: RequestContext) -> Lines:
    return ((AuditedAction(*_client_and_api(key, context)), FAILED),)


def _client_and_api(key: int, context: RequestContext) -> tuple[str, str, str]:
    connection = context.connection
    return str(connection.principal), connection.host, apis.API_NAMES[key]


_DENIALS = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    }
)


def audited_actions(
    row: Row, who: tuple[str, str, str], request: Fields, response: Fields
) -> Iterator[tuple[AuditedAction, str]]:
    """Yield the audited actions of one request with their outcomes. `who`: principal, host, and API name."""
    found: dict[int, list[Subjects]] = {}
    for code, subjects in _outcomes(row, request, response):
        found.setdefault(code, []).append(subjects)
    is_tried = bool(request.get("validate_only", False))
    for code, several in found.items():
        topics, names, configs = (
            tuple(dict.fromkeys(chain.from_iterable(kind))) for kind in zip(*several, strict=True)
        )
        yield (
            AuditedAction(*who, topics, names=(*_of_whole(request), *names), configs=configs),
            _word(code, is_tried=is_tried),
        )


def _outcomes(row: Row, request: Fields, response: Fields) -> Iterator[tuple[int, Subjects]]:
    """Yield each error code with the subjects that it is about."""
    assert row.audit is not None
    mirrors = row.errors.mirrors
    asked = [element for mirror in mirrors for element in request.get(mirror.request) or ()]
    names = dict.fromkeys(mirror.response or mirror.inner[0].response for mirror in mirrors)
    answered = [element for name in names for element in response.get(name) or ()]
    whole = response.get("error_code", 0)
    describe, is_of_request = row.audit
    if whole or not answered:
        yield whole, Subjects()
        for element in asked:
            yield whole, describe(element)
        return
    described = asked if is_of_request and len(asked) == len(answered) else answered
    for element, result in zip(described, answered, strict=True):
        for code in dict.fromkeys(_codes(result)):
            yield code, describe(element)


def _codes(element: Any) -> list[int]:
    """Return the error codes of an element: those of its parts, and its own if that is an error or there are no parts."""
    if not isinstance(element, dict):
        return []
    inner = [code for value in element.values() if isinstance(value, list) for one in value for code in _codes(one)]
    own = [element["error_code"]] if "error_code" in element else []
    return [code for code in own if code or not inner] + inner


def _word(code: int, *, is_tried: bool) -> str:
    if not code:
        return VALIDATED if is_tried else DONE
    if code in _DENIALS:
        return DENIED
    return ErrorCode(code).name


def _of_whole(request: Fields) -> tuple[str, ...]:
    """Return the subject that a request names outside its arrays."""
    if "group_id" in request:
        return (f"group {request['group_id']}",)
    return (f"broker {request['broker_id']}",) if "broker_id" in request else ()
