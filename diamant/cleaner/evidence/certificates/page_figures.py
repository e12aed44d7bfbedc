"""The second half of a certificate's page: tables, digests and settings, for a check in detail.

What of the certificate there are no words for is shown as it is, so that a newer certificate loses nothing here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from diamant.cleaner.evidence.certificates.html import (
    Html,
    code,
    counted,
    joined,
    number,
    pairs,
    section,
    span,
    table,
    tag,
)
from diamant.cleaner.evidence.certificates.page_words import (
    Fields,
    is_redaction,
    part,
    place_text,
    shown,
    spaced,
    state_text,
)

MAX_ROWS = 200
"""Of a table; the certificate has them all."""
MAX_OFFSETS = 10

_CLOCKS = {"system": "that of the operating system", "manual": "one that can be moved by hand"}
_CODECS = {"bytes": "other than records", "none": "records, not compressed"}
_SORTS = {
    "same-key": "the same key, in a topic that was not named",
    "same-bytes": "the same bytes under another key",
    "raw": "the same bytes outside of records",
}
_NO_LIMIT_MS = (1 << 63) - 1

# What there are words for.
_KNOWN = frozenset(
    [
        "type",
        "version",
        "id",
        "state",
        "is_evidence",
        "clock",
        "issuer",
        "request",
        "runs",
        "found",
        "done",
        "overrides",
        "claims",
        "not_certified",
        "ended",
        "topics_ended",
        "partitions_added",
        "written_since",
        "written_since_not_listed",
        "tombstones_since",
        "tombstones_since_not_listed",
        "lost_tombstones",
        "unmatched",
        "elsewhere",
        "elsewhere_not_listed",
        "segments",
        "configuration",
        "coverage",
        "next",
        "not_covered",
        "signature",
    ]
)
_KNOWN_COVERAGE = frozenset(
    [
        "files",
        "files_listed",
        "known_positives",
        "files_by_sort",
        "files_gone_meanwhile",
        "not_read",
        "ledger",
        "codecs",
        "bytes",
        "decompressed_bytes",
        "batches",
        "records",
        "unreadable",
        "duration_ms",
        "engine",
        "values_searched_for",
        "texts_searched_for",
        "values_not_searched_for",
        "least_bytes_of_a_searched_value",
        "segments_after_the_recorded_end",
    ]
)
_KNOWN_REQUEST = frozenset(
    ("reason", "reference", "topics", "topic", "key_hmac", "key_bytes", "hmac", "where_hmac", "where_shape")
)


def figures(certificate: Fields) -> Iterable[Html]:
    """Yield the sections."""
    yield section("Partitions", *_partitions(certificate), is_wide=True)
    if refused := certificate.get("not_certified"):
        rows = [(place_text(one), state_text(one.get("state")), _why(one)) for one in refused]
        yield section("Not certified", *_cut(("Partition", "State", "Why"), rows), is_wide=True)
    if since := certificate.get("written_since"):
        rows = [(place_text(one), number(one.get("offset", "-")), one.get("file", "-")) for one in since]
        content = _cut(("Partition", "Offset", "File"), rows)
        if unlisted := certificate.get("written_since_not_listed"):
            content.append(
                tag("p", f"{counted(unlisted, 'further record')} are listed neither here nor in the JSON file.")
            )
        yield section("Written since", *content, is_wide=True)
    if marks := certificate.get("tombstones_since"):
        rows = [(place_text(one), number(one.get("offset", "-")), one.get("file", "-")) for one in marks]
        content = _cut(("Partition", "Offset", "File"), rows)
        if unlisted := certificate.get("tombstones_since_not_listed"):
            content.append(tag("p", f"{counted(unlisted, 'further deletion mark')} are listed nowhere."))
        yield section("Deletion marks since", *content, is_wide=True)
    if elsewhere := certificate.get("elsewhere"):
        rows = [(place_text(one), number(one.get("offset", "-")), _sort(one)) for one in elsewhere]
        yield section("Seen elsewhere", *_cut(("Partition or file", "Offset", "What"), rows), is_wide=True)
    yield section("The search", *_search(part(certificate, "coverage")), is_wide=True)
    yield section("Segment files", *_segments(part(certificate, "segments")), is_wide=True)
    if configuration := part(certificate, "configuration"):
        yield section("Settings in force", *_configuration(configuration), is_wide=True)
    yield section("Request and issuer", *_issuer(certificate), is_wide=True)
    if more := [(spaced(name), shown(value)) for name, value in certificate.items() if name not in _KNOWN]:
        yield section("Also stated", pairs(more), is_wide=True)


def _partitions(certificate: Fields) -> Iterable[Html]:
    """One row for each partition: those in which something was found first."""
    found = {_at(one): one for one in certificate.get("found", ())}
    done = {_at(one): one for one in certificate.get("done", ())}
    claims = sorted(certificate.get("claims", ()), key=lambda one: _at(one) not in found)
    rows = []
    for claim in claims:
        one, step = found.get(_at(claim), {}), done.get(_at(claim), {})
        count = one.get("values", one.get("records", 0))
        mark = step.get("tombstone_offset", step.get("tombstone", "-"))
        rows.append(
            (
                place_text(claim),
                joined((tag("b", number(count)) if count else "none", _offsets(one.get("offsets", ())))),
                *(() if is_redaction(certificate) else (number(mark),)),
                number(claim.get("below_offset", "-")),
                state_text(claim.get("state")),
            )
        )
    if not rows:
        return [tag("p", "None is certified.")]
    marks = () if is_redaction(certificate) else ("Deletion mark at offset",)
    return _cut(("Partition", "Found at offset", *marks, "Certified below offset", "Now"), rows)


def _offsets(offsets: Sequence[Any]) -> str | None:
    if not offsets:
        return None
    more = " …" if len(offsets) > MAX_OFFSETS else ""
    return f": {', '.join(number(one) for one in offsets[:MAX_OFFSETS])}{more}"


def _search(coverage: Fields) -> Iterable[Html]:
    sorts = ", ".join(f"{number(count)} {name}" for name, count in part(coverage, "files_by_sort").items())
    rows: list[tuple[object, object]] = [
        ("Files", number(coverage.get("files")) + (f": {sorts}" if sorts else "")),
        ("Bytes on the disk", number(coverage.get("bytes"))),
        ("Bytes decompressed", number(coverage.get("decompressed_bytes"))),
        ("Records", f"{number(coverage.get('records'))} in {counted(coverage.get('batches'), 'batch', 'batches')}"),
    ]
    if "values_searched_for" in coverage:
        least = coverage.get("least_bytes_of_a_searched_value")
        searched = f"{number(coverage['values_searched_for'])}, of {number(least)} bytes and more, as bytes anywhere in any file"
        rows.append(("Values looked for", searched))
        if texts := coverage.get("texts_searched_for"):
            rows.append(("Texts looked for", f"{number(texts)} of the description, in the same way"))
        if missed := coverage.get("values_not_searched_for"):
            rows.append(("Values not looked for", f"{number(missed)}: there were too many"))
    if known := part(coverage, "known_positives"):
        rows.append(
            (
                "Written for the search to find, and found",
                f"{number(known.get('seen'))} of {number(known.get('planted'))}",
            )
        )
    rows += [
        (spaced(name), number(coverage[name]))
        for name in ("files_gone_meanwhile", "segments_after_the_recorded_end")
        if coverage.get(name)
    ]
    for one in [*coverage.get("not_read", ()), *coverage.get("unreadable", ())][:MAX_ROWS]:
        rows.append(("Could not be read", f"{one.get('file')}: {one.get('reason')}"))
    rows += [(spaced(name), shown(value)) for name, value in coverage.items() if name not in _KNOWN_COVERAGE]
    yield pairs(rows)
    codecs = [
        (_CODECS.get(name, name), *(number(one) for one in amounts))
        for name, amounts in part(coverage, "codecs").items()
        if isinstance(amounts, list)
    ]
    if codecs:
        yield tag("h3", "By kind of content")
        yield table(("Content", "Batches", "Records", "Bytes on the disk"), codecs)


def _segments(segments: Fields) -> Iterable[Html]:
    for which, heading in (("before", "As they were before"), ("after", "As they were left")):
        files = segments.get(which, ())
        yield tag("h3", heading)
        if not files:
            yield tag("p", "None was affected.")
            continue
        rows = [(code(one.get("file")), number(one.get("size")), code(one.get("sha256"))) for one in files]
        yield from _cut(("File", "Bytes", "SHA-256"), rows)
        yield pairs([("Merkle root over these files", code(segments.get(f"{which}_root")))])


def _configuration(configuration: Fields) -> Iterable[Html]:
    for topic, settings in list(configuration.items())[:MAX_ROWS]:
        yield tag("h3", topic)
        if isinstance(settings, Mapping):
            yield pairs((name, _setting(name, value)) for name, value in settings.items())


def _issuer(certificate: Fields) -> Iterable[Html]:
    request, clock = part(certificate, "request"), part(certificate, "clock")
    issuer, signature = part(certificate, "issuer"), part(certificate, "signature")
    rows: list[tuple[object, object]] = []
    if "key_hmac" in request:
        rows += [
            ("Key, as a keyed digest", code(request["key_hmac"])),
            ("What that is", f"{request.get('hmac')}; the key has {counted(request.get('key_bytes'), 'byte')}"),
        ]
    if "where_hmac" in request:
        rows += [
            ("Description", code(request.get("where_shape"))),
            ("The same, as a keyed digest", code(request["where_hmac"])),
            ("What that is", request.get("hmac")),
        ]
    rows += [(spaced(name), shown(value)) for name, value in request.items() if name not in _KNOWN_REQUEST]
    rows += [
        ("Issued by", f"{issuer.get('software')}, node {issuer.get('node_id')} of cluster {issuer.get('cluster_id')}"),
        ("Clock", _CLOCKS.get(str(clock.get("kind")), clock.get("kind"))),
        ("Signature", signature.get("algorithm")),
        ("Public key", code(signature.get("public_key"))),
    ]
    return [pairs(rows)]


def _cut(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> list[Html]:
    """Return a table of the first rows, and how many more there are."""
    more = len(rows) - MAX_ROWS
    note = [tag("p", f"{number(more)} more are in the JSON file.")] if more > 0 else []
    return [table(heads, rows[:MAX_ROWS]), *note]


def _why(refused: Fields) -> str:
    problems = refused.get("problems") or ()
    return "; ".join(f"{one.get('file')}: {one.get('reason')}" for one in problems) or state_text(refused.get("state"))


def _sort(one: Fields) -> str:
    field = f", in the {one['field']}" if one.get("field") else ""
    if one.get("what") == "same-key" and one.get("topic") is None:
        return "a record of the key, in a file that belongs to no partition"
    return _SORTS.get(one.get("what", ""), str(one.get("what"))) + field


def _at(one: Fields) -> tuple[Any, Any]:
    return one.get("topic"), one.get("partition")


def _setting(name: str, value: object) -> str:
    if name.endswith(".ms") and isinstance(value, int) and value > 0:
        return "no limit" if value == _NO_LIMIT_MS else f"{span(value)} ({number(value)} ms)"
    return shown(value)
