"""Renders a certificate as an HTML page that people can keep, mail and print: plain words first, then figures and digests.

The page requires no knowledge of Kafka. It shows the certificate but does not verify it. The templates `*.html.j2` escape all
text. Fields that the page has no words for are shown unchanged, so that nothing is missing from newer certificates.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from jinja2 import ChainableUndefined, Environment, PackageLoader, Template

from diamant.cleaner.evidence.certificates.certificate import CLUSTER_TYPE, DISK_TYPE, public_pem
from diamant.cleaner.evidence.certificates.page_words import (
    Fields,
    becoming,
    fields_not_seen,
    is_redaction,
    part,
    place_text,
    seen_elsewhere,
    setting,
    shown,
    spaced,
    state_text,
    topics_of,
    unchangeable,
    unchangeable_count,
    undecided_count,
    written_since_count,
)
from diamant.storage.certificate_states import (
    FIELDS_BLANKED,
    KEY_GONE,
    NOT_CERTIFIED,
    NOTHING_MATCHED,
    RECORDS_GONE,
    VALUES_GONE,
)
from diamant.words import counted, moment, number, size

MAX_ROWS = 200
"""Maximum number of rows in a table; the certificate itself has all of them."""
MAX_OFFSETS = 10

_KINDS = {
    "diamant-erasure-certificate": "Certificate of erasure",
    "diamant-redaction-certificate": "Certificate of redaction",
    CLUSTER_TYPE: "Certificate of erasure on a Kafka cluster",
    DISK_TYPE: "Certificate of the disk of a Kafka broker",
}
_STATES = {
    KEY_GONE: ("Everything stored under the key is gone", "good"),
    VALUES_GONE: ("All values are gone; only a deletion mark still names the key", "good"),
    RECORDS_GONE: ("All records that matched are gone", "good"),
    FIELDS_BLANKED: ("In all records that matched, the named fields are as asked", "good"),
    NOTHING_MATCHED: ("Nothing was found, and nothing was removed", "warn"),
    NOT_CERTIFIED: ("Not certified: something is left, or could not be checked", "bad"),
}
_ON_CLUSTER = {
    "unreadable": ("No broker returns a value any more; a deletion mark still names the key", "good"),
    "key-unreadable": ("No broker returns anything under the key any more", "good"),
}
_PROVEN_ON_CLUSTER = {
    "unreadable": "When it was read, no replica returned a value of the key. Nothing is said of the brokers' disks.",
    "key-unreadable": "When it was read, no replica returned a record of the key, nor a deletion mark of it. "
    "Nothing is said of the brokers' disks.",
    VALUES_GONE: "The log directories that were searched hold no value of the key.",
    KEY_GONE: "The log directories that were searched hold no record of the key, nor a deletion mark of it.",
    NOTHING_MATCHED: "No replica returned a record of the key, and nothing was erased.",
}
_NOTHING_MATCHED = ("No record matched, and nothing was removed", "bad")
_NOT_SIGNED = ("This is not what was signed: it proves nothing", "bad")
_PROVEN = {
    KEY_GONE: "no record with this key is left, neither a value nor a deletion mark",
    VALUES_GONE: "no record with this key has a value any more; what is left names the key and holds no data",
    RECORDS_GONE: "no record that matches the description is left",
    FIELDS_BLANKED: "in every record that matches the description, the named fields are what was asked for",
}
_PROVEN_OF_OTHERS = (
    "in every record that matches the description, except for those that could not be changed, the named fields are what was "
    "asked for"
)
_NOTHING_FOUND = "there is no record {}, and none was removed"
_ENDINGS = {
    "cancelled": "It was cancelled",
    "everything-matches": "The broker ended it",
    "undecided-records": "Some records were left: they may or may not match, or cannot be changed, and the request did not say"
    " how to treat them",
}
_CLOCKS = {"system": "that of the operating system", "manual": "one that can be moved by hand"}
_CODECS = {"bytes": "other than records", "none": "records, not compressed"}
_SORTS = {
    "same-key": "the same key, in a topic that was not named",
    "same-bytes": "the same bytes under another key",
    "raw": "the same bytes outside of records",
}
_WITH_WORDS = {
    "certificate": "type version id state is_evidence clock issuer request runs found done overrides claims not_certified ended "
    "topics_ended partitions_added written_since written_since_not_listed tombstones_since tombstones_since_not_listed "
    "lost_tombstones unmatched elsewhere elsewhere_not_listed segments configuration coverage next not_covered signature",
    "request": "reason reference topics topic key_hmac key_bytes hmac where_hmac where_shape fields",
    "coverage": "files files_listed known_positives files_by_sort files_gone_meanwhile not_read ledger codecs bytes "
    "decompressed_bytes batches records unreadable duration_ms engine values_searched_for texts_searched_for "
    "values_not_searched_for least_bytes_of_a_searched_value segments_after_the_recorded_end",
}
"""The fields that the page describes in its own words, by the object that contains them."""


def certificate_page(certificate: Fields, problem: str = "", bundle: str = "") -> str:
    """Return the page as HTML.

    `problem`: the reason why the certificate is not what its broker signed, if it is not. `bundle`: a link to its bundle.
    """
    if certificate["type"] in (CLUSTER_TYPE, DISK_TYPE):
        return _cluster_page(certificate, problem)
    coverage, found = part(certificate, "coverage"), certificate.get("found", ())
    title, mood = _STATES.get(certificate["state"], (f"State: {certificate['state']}", "warn"))
    left = unchangeable_count(certificate)
    if left and certificate["state"] == FIELDS_BLANKED:
        title, mood = (
            f"{counted(left, 'record')} could not be changed; in all others that matched, the fields are as asked",
            "warn",
        )
    if part(certificate, "unmatched"):
        title, mood = _NOTHING_MATCHED
    if problem:
        title, mood = _NOT_SIGNED
    redaction = is_redaction(certificate)
    nothing_found = _NOTHING_FOUND.format("that matches the description" if redaction else "with this key")
    return template("page.html.j2").render(
        c=certificate,
        problem=problem,
        bundle=bundle,
        kind=_KINDS.get(certificate["type"], "Certificate"),
        title=title,
        mood=mood,
        redaction=redaction,
        changed=part(certificate, "request").get("fields") or (),
        not_seen=fields_not_seen(certificate),
        unchangeable=unchangeable(certificate),
        undecided=undecided_count(certificate),
        topics=topics_of(certificate),
        has_values=any("values" in one for one in found),
        used_spark=any("spark" in one.get("runners", ()) for one in certificate.get("done", ())),
        proven={**_PROVEN, NOTHING_MATCHED: nothing_found, **({FIELDS_BLANKED: _PROVEN_OF_OTHERS} if left else {})},
        written_since=written_since_count(certificate),
        seen_elsewhere=seen_elsewhere(certificate),
        reasons=[*dict.fromkeys(_reasons(certificate))],
        unread=[*coverage.get("not_read", ()), *coverage.get("unreadable", ())],
        pem_line=_pem_line(part(certificate, "signature").get("public_key")),
        partitions=list(_partitions(certificate)),
        sorted_files=_sorted_files(part(coverage, "files_by_sort")),
        codecs=[
            (_CODECS.get(name, name), *(number(one) for one in amounts))
            for name, amounts in part(coverage, "codecs").items()
            if isinstance(amounts, list)
        ],
    )


def _cluster_page(certificate: Fields, problem: str) -> str:
    """Return the page of a certificate about a Kafka cluster, which describes brokers' answers or disks, not a data directory."""
    state = str(certificate["state"])
    title, mood = {**_STATES, **_ON_CLUSTER}.get(state, (f"State: {state}", "warn"))
    heads = [
        "Partition",
        "State",
        "Below offset",
        "Broker",
        "Offsets read",
        "Bytes",
        "Read at",
        "Test records found",
    ]
    rows = [
        [
            place_text(one),
            state_text(one.get("state")),
            number(one.get("below_offset")),
            str(row.get("broker")),
            f"{number(row.get('from_offset'))} to {number(row.get('to_offset'))}",
            number(row.get("bytes")),
            moment(row.get("ended_ms")),
            f"{part(row, 'known_positives').get('seen')} of {part(row, 'known_positives').get('planted')}",
        ]
        for one in (*certificate["claims"], *certificate.get("not_certified", ()))
        for row in one.get("replicas", ())
    ]
    if certificate["type"] == DISK_TYPE:
        heads = heads[:4]
        broker = str(certificate.get("broker"))
        listed = (*certificate["claims"], *certificate.get("not_certified", ()))
        rows = [
            [place_text(one), state_text(one.get("state")), number(one.get("below_offset")), broker] for one in listed
        ]
    return template("cluster_page.html.j2").render(
        c=certificate,
        problem=problem,
        kind=_KINDS[certificate["type"]],
        title=_NOT_SIGNED[0] if problem else title,
        mood=_NOT_SIGNED[1] if problem else mood,
        topics=topics_of(certificate),
        proven=_PROVEN_ON_CLUSTER.get(state, "Nothing: what is in the way is named above."),
        reasons=[*dict.fromkeys(_reasons(certificate))],
        heads=heads,
        rows=rows,
    )


class _Missing(ChainableUndefined):
    """A field that the certificate does not have; rendered as a hyphen."""

    def __str__(self) -> str:
        return "-"


class _Fields(Environment):
    """A template environment that finds only the fields of mappings, so that `one.values` is a field, not the method."""

    def getitem(self, obj: Any, argument: Any) -> Any:
        if not isinstance(obj, Mapping):
            return super().getitem(obj, argument)
        try:
            return obj[argument]
        except (KeyError, TypeError):
            return self.undefined(obj=obj, name=argument)

    def getattr(self, obj: Any, attribute: str) -> Any:
        return self.getitem(obj, attribute) if isinstance(obj, Mapping) else super().getattr(obj, attribute)


@cache
def template(name: str) -> Template:
    """Load a template from this folder."""
    environment = _Fields(
        loader=PackageLoader("diamant.cleaner.evidence.certificates", ""),
        autoescape=True,
        undefined=_Missing,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    words = (counted, number, size, moment, spaced, shown, setting)
    environment.filters.update({word.__name__: word for word in words})
    environment.filters.update(
        place=place_text, becoming=becoming, state=state_text, total=_total, fields=_pairs, unknown=_unknown
    )
    environment.globals.update(
        max_rows=MAX_ROWS, max_offsets=MAX_OFFSETS, endings=_ENDINGS, clocks=_CLOCKS, sorts=_SORTS
    )
    return environment.get_template(name)


def _partitions(certificate: Fields) -> Iterable[tuple[Fields, Fields, Fields]]:
    """Yield the claim, the findings and the action for each partition, beginning with partitions that had findings."""
    found = {_at(one): one for one in certificate.get("found", ())}
    done = {_at(one): one for one in certificate.get("done", ())}
    for claim in sorted(certificate.get("claims", ()), key=lambda one: _at(one) not in found):
        yield claim, found.get(_at(claim), {}), done.get(_at(claim), {})


def _reasons(certificate: Fields) -> Iterable[tuple[str, str]]:
    """Yield the file and the reason for each problem that prevented a claim."""
    for one in certificate.get("not_certified", ()):
        for problem in one.get("problems", ()):
            yield str(problem.get("file", "-")), str(problem.get("reason", "-"))


def _at(one: Fields) -> tuple[Any, Any]:
    return one.get("topic"), one.get("partition")


def _total(rows: Sequence[Fields], name: str) -> int:
    return sum(one.get(name, 0) for one in rows)


def _pairs(fields: object) -> list[tuple[str, Any]]:
    """Return the names and values in an object; an empty list for any other value."""
    return list(fields.items()) if isinstance(fields, Mapping) else []


def _unknown(fields: object, where: str) -> list[tuple[str, Any]]:
    """Return the fields of an object that the page has no words for."""
    known = _WITH_WORDS[where].split()
    return [(name, value) for name, value in _pairs(fields) if name not in known]


def _sorted_files(counts: Fields) -> str:
    sorts = ", ".join(f"{number(count)} {name}" for name, count in counts.items())
    return f": {sorts}" if sorts else ""


def _pem_line(public_key: object) -> str:
    """Return the base64 line in the PEM form of an Ed25519 public key; an empty string for any other value."""
    try:
        data = bytes.fromhex(str(public_key))
    except ValueError:
        return ""
    return public_pem(data).splitlines()[1] if len(data) == 32 else ""
