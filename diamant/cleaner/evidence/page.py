"""A certificate as one HTML page for people: no scripts, nothing from elsewhere, to be kept, mailed and printed.

Everything that comes from the certificate is escaped: a reason may be any text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

_STATES = {
    "key-gone": ("The key and all its values are gone", "good"),
    "values-gone": ("All values are gone; the key itself is still named by a deletion mark", "good"),
    "not-certified": ("Not certified: see which partitions and why", "bad"),
}
_SORTS = {
    "same-key": "the same key",
    "same-bytes": "the same bytes under another key",
    "raw": "bytes outside of records",
}

_STYLE = """
:root{--ink:#1c2430;--soft:#5b6675;--line:#dfe4ea;--good:#0f6b3f;--bad:#a11d1d;--warn:#8a5a00}
*{box-sizing:border-box}body{margin:0;background:#f3f5f7;color:var(--ink);font:15px/1.55 system-ui,sans-serif}
main{max-width:860px;margin:32px auto;background:#fff;border:1px solid var(--line);border-radius:10px;padding:36px 44px}
h1{font-size:24px;margin:0 0 4px}h2{font-size:16px;margin:30px 0 8px;border-bottom:1px solid var(--line);padding-bottom:4px}
.sub{color:var(--soft);margin:0 0 20px}.verdict{border-left:5px solid;padding:12px 16px;background:#f7f9fa;font-size:17px}
.good{border-color:var(--good);color:var(--good)}.bad{border-color:var(--bad);color:var(--bad)}
.warn{border-color:var(--warn);color:var(--warn);margin-top:10px;font-size:15px}
table{border-collapse:collapse;width:100%;font-size:14px}th{text-align:left;color:var(--soft);font-weight:600}
th,td{padding:5px 10px 5px 0;border-bottom:1px solid var(--line);vertical-align:top}
dl{display:grid;grid-template-columns:190px 1fr;gap:4px 12px;margin:0}dt{color:var(--soft)}dd{margin:0}
code{font:12px/1.5 ui-monospace,monospace;overflow-wrap:anywhere}
@media print{body{background:#fff}main{border:0;margin:0;padding:0}}
"""


def certificate_page(certificate: Mapping[str, Any]) -> str:
    """Return the page. It shows what the certificate says, and does not verify it."""
    request, clock, issuer = certificate["request"], certificate["clock"], certificate["issuer"]
    title, mood = _STATES.get(certificate["state"], (certificate["state"], "bad"))
    parts = [
        "<h1>Certificate of erasure</h1>",
        f'<p class="sub">No. {_text(certificate["id"])}, issued {_time(clock["issued_ms"])}</p>',
        f'<div class="verdict {mood}">{_text(title)}</div>',
    ]
    if not certificate["is_evidence"]:
        parts.append('<div class="verdict warn">A manual clock was in use. This certificate is not evidence.</div>')
    if certificate["written_since"]:
        count = len(certificate["written_since"])
        parts.append(f'<div class="verdict warn">The key was written again {count} times after it was erased.</div>')
    if certificate["next"] is not None:
        due = _time(certificate["next"]["due_ms"])
        parts.append(
            "<p>The deletion mark stays so that systems that copy the data learn of the erasure. It goes from "
            f"<b>{due}</b> on; then the certificate that the key is gone is issued.</p>"
        )
    parts += [
        "<h2>The request</h2>",
        _list(
            [
                ("Reason", _text(request["reason"])),
                ("Reference", _text(request["reference"]) or "none given"),
                ("Received", _time(clock["requested_ms"])),
                ("Topics", _text(", ".join(request["topics"]))),
                ("Key, as a keyed digest", f"<code>{_text(request['key_hmac'])}</code>"),
            ]
        ),
        "<h2>What was found and done</h2>",
        _found(certificate),
        "<h2>What is certified</h2>",
        _table(
            ("Partition", "Below offset", "State"),
            ((_place(one), str(one["below_offset"]), _text(one["state"])) for one in certificate["claims"]),
            "Nothing is certified.",
        ),
    ]
    if certificate["not_certified"]:
        parts += ["<h2>What is not certified, and why</h2>", _refused(certificate["not_certified"])]
    if certificate["overrides"]:
        parts += ["<h2>What was overridden</h2>", _overrides(certificate["overrides"])]
    if certificate["elsewhere"]:
        rows = ((_place(one), _text(one.get("offset", "-")), _sort(one)) for one in certificate["elsewhere"][:200])
        parts += ["<h2>Seen elsewhere, and not erased</h2>", _table(("Place", "Offset", "What"), rows, "")]
    coverage, segments = certificate["coverage"], certificate["segments"]
    parts += [
        "<h2>What was searched</h2>",
        _list(
            [
                ("Files", f"{coverage['files']:,}, everything in the data directory"),
                ("Bytes", f"{coverage['bytes']:,} and {coverage['decompressed_bytes']:,} decompressed"),
                ("Records read", f"{coverage['records']:,}"),
                ("Could not be read", f"{len(coverage['unreadable']):,} places"),
                ("Segments before (Merkle root)", f"<code>{_text(segments['before_root'])}</code>"),
                ("Segments after (Merkle root)", f"<code>{_text(segments['after_root'])}</code>"),
            ]
        ),
        "<h2>What this certificate does not cover</h2>",
        "<ul>" + "".join(f"<li>{_text(one)}</li>" for one in certificate["not_covered"]) + "</ul>",
        "<h2>Issuer and signature</h2>",
        _list(
            [
                ("Issued by", _text(f"{issuer['software']}, cluster {issuer['cluster_id']}, node {issuer['node_id']}")),
                ("Clock", _text(clock["kind"])),
                ("Signature", _text(certificate["signature"]["algorithm"])),
                ("Public key", f"<code>{_text(certificate['signature']['public_key'])}</code>"),
            ]
        ),
        "<p>This page only shows the certificate. <b>Whether it is genuine is told by verifying the JSON file</b> with the "
        "public key that you were given before: <code>diamant verify certificate.json --public-key key.pem</code></p>",
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>Certificate of erasure</title><style>{_STYLE}</style></head><body><main>{''.join(parts)}</main></body></html>"
    )


def _found(certificate: Mapping[str, Any]) -> str:
    steps = {(one["topic"], one["partition"]): one for one in certificate["done"]}
    rows = []
    for one in certificate["found"]:
        step = steps.get((one["topic"], one["partition"]), {})
        mark = step.get("tombstone_offset", step.get("tombstone", "-"))
        rows.append((_place(one), str(one["values"]), str(one["copies_on_disk"]), _text(mark)))
    return _table(
        ("Partition", "Values found", "Copies on disk", "Deletion mark at offset"),
        rows,
        "The key was found in none of the partitions of these topics.",
    )


def _refused(refused: Iterable[Mapping[str, Any]]) -> str:
    rows = []
    for one in refused:
        why = "; ".join(f"{problem['file']}: {problem['reason']}" for problem in one["problems"]) or one["state"]
        rows.append((_place(one), _text(one["state"]), _text(why)))
    return _table(("Partition", "State", "Why"), rows, "")


def _overrides(overrides: Iterable[Mapping[str, Any]]) -> str:
    rows = []
    for one in overrides:
        groups = ", ".join(one["groups_that_had_not_passed_it"]) or "none"
        rows.append((_place(one), _text(one["what"]), _text(groups)))
    return _table(("Partition", "What", "Groups that had not seen it"), rows, "")


def _sort(one: Mapping[str, Any]) -> str:
    field = f", in the {one['field']}" if one.get("field") else ""
    return _text(_SORTS.get(one["what"], one["what"]) + field)


def _place(one: Mapping[str, Any]) -> str:
    if one.get("topic") is None:
        return _text(one.get("file", "-"))
    return _text(f"{one['topic']}-{one['partition']}")


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], nothing: str) -> str:
    """Return a table of cells that are escaped already."""
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    if not body:
        return f"<p>{nothing}</p>"
    return "<table><tr>" + "".join(f"<th>{head}</th>" for head in heads) + f"</tr>{body}</table>"


def _list(pairs: Iterable[tuple[str, str]]) -> str:
    return "<dl>" + "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in pairs) + "</dl>"


def _text(value: object) -> str:
    return escape(str(value))


def _time(time_ms: int) -> str:
    try:
        return f"{datetime.fromtimestamp(time_ms // 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, OSError, ValueError):
        return f"{time_ms} ms since 1970"
