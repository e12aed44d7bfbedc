"""Forgetting a person: the places of their records, a preview of the removal and, once confirmed, an erasure or a redaction.

Keys and conditions are sent in bodies only. A preview reads like `explain`, changes nothing, and shows the state at that moment.
"""

from __future__ import annotations

import base64
import shlex
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from aiohttp import web

from diamant.broker.dispatch.operation_row import MAX_KEYED_BODY_BYTES
from diamant.broker.http.page.making.rendering import (
    HEADERS,
    ShownCall,
    find_call,
    fragment,
    page,
    refused,
    shown_call,
    view,
)
from diamant.broker.http.serving.authorization import CERTIFICATES, RECORDS
from diamant.broker.http.serving.route import Call, Route
from diamant.broker.operation_errors import BadArgument, NotFound, NotPossible, no_topic
from diamant.broker.operations.calls.parameters import Param
from diamant.broker.record_json import key_fields
from diamant.broker.topics.internal_names import INTERNAL_TOPICS
from diamant.words import counted

MAX_WAIT_MS = 600_000
MAX_ROWS = 200


class KeyPlace(NamedTuple):
    """The records of a key in one partition."""

    topic: str
    partition: int
    is_compacted: bool
    statuses: str
    records: int
    holds: str
    goes_ms: int | None
    """The time by which all of the records are removed without an erasure; None if never, with the current settings."""


class MatchPlace(NamedTuple):
    """The records of one partition that match a condition."""

    partition: int
    matched: int
    superseded: int
    undecided: int
    kept: int
    problem: str


def _topics(call: Call, asked: list[str]) -> list[str]:
    """Return the topics to search: the named ones, or all topics of users. Raises NotFound."""
    known = call.services.node.topics.by_name
    for one in asked:
        if one not in known:
            raise NotFound(no_topic(one))
    return sorted(asked or (name for name in known if name not in INTERNAL_TOPICS))


async def show(call: Call) -> web.StreamResponse:
    """Return the forms, and the list of certificates."""
    kept = call.services.certificates()
    certificates = await kept.list_all()
    public_key = ""
    with suppress(NotPossible):  # there is no key before the first certificate
        public_key = _hex_of(await kept.public_key() or "")
    unfinished = [one for kind in call.services.jobs for one in await kind.unfinished_on_disk()]
    context = {
        "topics": _topics(call, []),
        "unfinished": unfinished[:MAX_ROWS],
        "certificates": certificates[::-1][:MAX_ROWS],
        "more": max(0, len(certificates) - MAX_ROWS),
        "public_key": public_key,
        "verify": _verify_call(call, public_key),
        # page.js (`LOOKS`) fills in the typed values.
        "look_key": shown_call(
            call, "POST", "/v1/explain", {"topic": "TOPIC", "key": {"text": "KEY"}}, "diamant explain TOPIC --key KEY",
            'diamant.Admin().explain("TOPIC", key="KEY")',
        ),
        "look_where": find_call(call, "TOPIC", {"where": "DESCRIPTION"}),
    }  # fmt: skip
    return page("forget.html.j2", context, title="Forget", view="Forget")


def _verify_call(call: Call, public_key: str) -> ShownCall:
    url = call.services.node.addresses.http_url
    # The certificate is inserted unparsed, since `jq` 1.6 rounds large numbers, which would make it look forged.
    program = f"""printf '{{"certificate": %s, "public_key": "{public_key}"}}' "$(cat FILE.json)" | """
    curl = f"{program}curl {url}/v1/verify -H 'Content-Type: application/json' -d @-"
    python = f'diamant.Admin().verify(json.load(open("FILE.json")), public_key="{public_key}")'
    shell = "diamant verify FILE.json --public-key KEY.pem"
    return ShownCall("POST", "/v1/verify", {}, shell, python, curl)


def _hex_of(pem: str) -> str:
    """Return an Ed25519 public key in hexadecimal: the last 32 bytes of SubjectPublicKeyInfo (RFC 8410)."""
    text = "".join(line for line in pem.splitlines() if not line.startswith("-"))
    return base64.b64decode(text)[-32:].hex()


async def preview_key(call: Call) -> web.StreamResponse:
    """Return the partitions with records of a key. Raises NotFound, NotPossible, TooMany."""
    from diamant.broker.operations.records.record_requests import ExplainRequest

    key: bytes = call.fields["key"]
    places: list[KeyPlace] = []
    for topic in _topics(call, call.fields["topics"]):
        found = await call.services.explain().explain(ExplainRequest(topic, key=key), call.progress)
        for one in found.partitions:
            if not one.records and not one.records_left_out:
                continue
            statuses = [f"{count:,} {name}" for name, count in Counter(record.status for record in one.records).items()]
            if one.records_left_out:
                statuses.append(f"{one.records_left_out:,} not listed")
            held = next((record for record in one.records if record.gates), None)
            times = [record.goes_ms for record in one.records]
            places.append(
                KeyPlace(
                    topic,
                    one.partition,
                    "compact" in one.cleanup_policy,
                    ", ".join(statuses),
                    len(one.records) + one.records_left_out,
                    held.gates[0].text if held is not None else "",
                    None if None in times else max((time for time in times if time is not None), default=None),
                )
            )
    erasable = sorted({one.topic for one in places if one.is_compacted})
    context = {
        "places": places,
        "topics": erasable,
        "records": sum(one.records for one in places if one.is_compacted),
        "others": sorted({one.topic for one in places if not one.is_compacted}),
        "call": _erase_call(call, key, erasable),
    }
    return _part("forget_key.html.j2", context)


def _erase_call(call: Call, key: bytes, topics: list[str]) -> ShownCall:
    found = key_fields(key)
    option, text = ("--key", found["text"]) if "text" in found else ("--key-hex", found["hex"])
    return shown_call(
        call, "POST", "/v1/erase", {"key": found, "topics": topics},
        f"diamant erase {' '.join(topics)} {option} {shlex.quote(text)} --reason REASON",
        f"broker.erase({key!r}, {topics!r}, reason=REASON)",
    )  # fmt: skip


async def preview_where(call: Call) -> web.StreamResponse:
    """Return the records that a redaction would remove. Raises NotFound, NotPossible, BadArgument."""
    from diamant.broker.operations.records.located_records import located_records
    from diamant.cleaner.redaction.where import WhereError, parse_where

    topic, text = call.fields["topic"], call.fields["where"]
    explaining = call.services.explain()
    try:
        where = parse_where(text, values=explaining.values(topic))
    except WhereError as error:
        raise BadArgument(str(error)) from None
    places = []
    for partition, located in await located_records(explaining, topic, where):
        problem = f"{counted(len(located.problems), 'segment')} cannot be read" if located.problems else ""
        places.append(
            MatchPlace(partition, located.matched, located.superseded, located.undecided, located.kept, problem)
        )
    context = {
        "topic": topic,
        "where": text,
        "places": places,
        "removed": sum(one.matched + one.superseded for one in places),
        "undecided": sum(one.undecided for one in places),
        "kept": sum(one.kept for one in places),
        "call": shown_call(
            call, "POST", "/v1/redact", {"topic": topic, "where": text},
            f"diamant redact {topic} --where {shlex.quote(text)} --reason REASON",
            f"broker.redact({topic!r}, where={text!r}, reason=REASON)",
        ),
    }  # fmt: skip
    return _part("forget_where.html.j2", context)


def _part(template: str, context: dict[str, object]) -> web.Response:
    return web.Response(text=fragment(template, context), content_type="text/html", charset="utf-8", headers=HEADERS)


def _preview(path: str, handle: Callable[[Call], object], fields: tuple[Param, ...]) -> Route:
    return Route(
        "POST", path, handle, "A preview.",  # type: ignore[arg-type]
        fields=fields, changes_data=True, refuse=refused, max_body_bytes=MAX_KEYED_BODY_BYTES, max_wait_ms=MAX_WAIT_MS,
        permission=RECORDS,
    )  # fmt: skip


ROUTES = (
    view("/forget", show, "Forget a person.", CERTIFICATES),
    _preview(
        "/forget/key",
        preview_key,
        (Param("key", "key", "The key.", is_required=True), Param("topics", "strings", "Default: all topics.", ())),
    ),
    _preview(
        "/forget/where",
        preview_where,
        (
            Param("topic", "string", "The topic.", is_required=True),
            Param("where", "string", "The condition.", is_required=True),
        ),
    ),
)
