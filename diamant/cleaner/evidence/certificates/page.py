"""A certificate as one HTML page for people: plain words first, then figures and digests. To be kept, mailed and printed.

Its reader need not know Kafka. It says what the certificate says and does not verify it. Everything is escaped
(`html`).
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Sequence

from diamant.cleaner.evidence.certificates.certificate import NOTHING_MATCHED
from diamant.cleaner.evidence.certificates.html import (
    Html,
    counted,
    document,
    listed,
    moment,
    number,
    section,
    size,
    tag,
)
from diamant.cleaner.evidence.certificates.page_figures import figures
from diamant.cleaner.evidence.certificates.page_words import (
    Fields,
    is_redaction,
    part,
    place_text,
    seen_elsewhere,
    state_text,
    topics_of,
    written_since_count,
)

_KINDS = {
    "diamant-erasure-certificate": "Certificate of erasure",
    "diamant-redaction-certificate": "Certificate of redaction",
}
_ED25519_PREFIX = bytes.fromhex("302a300506032b6570032100")
"""The bytes before the key in SubjectPublicKeyInfo (RFC 8410)."""
_A_TOPIC = " (A topic is a stream of records that is kept in files.)"
_STATES = {
    "key-gone": ("Everything stored under the key is gone", "good"),
    "values-gone": ("All values are gone; only a deletion mark still names the key", "good"),
    "records-gone": ("All records that matched are gone", "good"),
    "nothing-matched": ("Nothing was found, and nothing was removed", "warn"),
    "not-certified": ("Not certified: something is left, or could not be checked", "bad"),
}
_NOTHING_MATCHED = ("No record matched, and nothing was removed", "bad")


def certificate_page(certificate: Fields, problem: str = "") -> str:
    """Return the page. `problem`: why the certificate is not what its broker has signed."""
    kind = _KINDS.get(certificate["type"], "Certificate")
    title, mood = _STATES.get(certificate["state"], (f"State: {certificate['state']}", "warn"))
    if part(certificate, "unmatched"):
        title, mood = _NOTHING_MATCHED
    if problem:
        title, mood = "This is not what was signed: it proves nothing", "bad"
    clock, issuer = part(certificate, "clock"), part(certificate, "issuer")
    return document(
        kind,
        tag("p", kind, css="kind"),
        tag("h1", title, css=mood),
        tag(
            "p",
            f"No. {certificate['id']}, issued {moment(clock.get('issued_ms'))} by {issuer.get('software')}, "
            f"cluster {issuer.get('cluster_id')}",
            css="sub",
        ),
        *([_notice("bad", "Do not rely on it:", f"{problem}.")] if problem else []),
        *_notices(certificate),
        section("What was asked", *_asked(certificate)),
        section("What was found", *_found(certificate)),
        section("What was done", *_done(certificate)),
        section("What is proven", *_proven(certificate)),
        section(
            "What is not covered",
            tag("p", "This certificate does not cover:"),
            listed(certificate.get("not_covered", ())),
        ),
        section("How to verify it", *_verifying(certificate)),
        tag("p", "Figures and digests", css="figures"),
        tag("p", "For a check in detail. The JSON file has all of it, also where a list is cut short here."),
        *figures(certificate),
    )


# -- in plain words --------------------------------------------------------------------------------------------------------


def _offsets(one: Fields) -> str:
    offsets, more = one.get("offsets", ()), one.get("offsets_not_listed", 0)
    return f"Offsets: {', '.join(map(str, offsets))}" + (f", and {more} more." if more else ".")


def _notices(certificate: Fields) -> Iterable[Html]:
    """Yield the notices to read before anything else."""
    if not certificate.get("is_evidence"):
        yield _notice(
            "warn",
            "This is not evidence.",
            "The clock of this system was one that can be moved by hand, as in a test or a demonstration. So the times on this "
            "page prove nothing.",
        )
    yield from _endings(certificate)
    if since := certificate.get("written_since"):
        places = ", ".join(sorted({place_text(one) for one in since}))
        records = counted(written_since_count(certificate), "new record")
        what, which = ("The key was written again.", "with this key")
        if is_redaction(certificate):
            what, which = ("There are new records that match.", "that match")
        yield _notice(
            "bad",
            what,
            f"Since then {records} {which} arrived in {places}. None of that is part of what is certified, and it is still "
            "there.",
        )
    if marks := certificate.get("tombstones_since"):
        places = ", ".join(sorted({place_text(one) for one in marks}))
        count = len(marks) + int(certificate.get("tombstones_since_not_listed", 0))
        yield _notice(
            "warn",
            "The key was named again.",
            f"Since then {counted(count, 'new deletion mark')} of the key arrived in {places}. A deletion mark holds no data; "
            "the key is named by it until it goes by itself, and none of that is part of what is certified.",
        )
    for one in certificate.get("overrides", ()):
        behind = ", ".join(one.get("groups_that_had_not_passed_it", ()))
        yield _notice(
            "warn",
            f"{place_text(one)}: a rule was overridden.",
            f"{one.get('what')}. "
            + (
                f"Known readers that had not seen it: {behind}."
                if behind
                else ("No known reader had yet to see it." if "groups_that_had_not_passed_it" in one else _offsets(one))
            ),
        )
    if certificate["state"] == NOTHING_MATCHED and not part(certificate, "unmatched"):
        yield _notice(
            "warn",
            "This proves no removal.",
            f"What was asked for was not in {_these(certificate)}: it was never there or had gone before, or it was written "
            "differently in the request.",
        )
    if doubt := part(certificate, "unmatched"):
        yield _notice(
            "bad",
            "Perhaps something should have been removed.",
            f"No record matches the description, but {counted(doubt.get('records'), 'record')} of the topic hold what was looked "
            "for in another place: its field or path may be wrong.",
        )
    if lost := certificate.get("lost_tombstones"):
        yield _notice(
            "warn",
            "A deletion mark went too early.",
            f"In {', '.join(place_text(one) for one in lost)} it was gone before its time, and no one had asked for "
            "that. Systems that copy these data may not have learned of the erasure.",
        )


def _endings(certificate: Fields) -> Iterable[Html]:
    """The measures that were not carried out, or not wholly, and why."""
    if part(certificate, "ended"):
        ended = part(certificate, "ended")
        why = {
            "cancelled": "It was cancelled",
            "everything-matches": "It was ended by the system",
            "undecided-records": "There are records of which nobody can tell whether they are meant, and nobody had said what "
            "is to become of them",
        }.get(str(ended.get("what")), "What it was about is not there any more")
        reason = f": “{ended['reason']}”" if ended.get("reason") else ""
        certified = "Of some partitions nothing" if certificate.get("claims") else "Nothing"
        yield _notice(
            "bad",
            "This was ended without being finished.",
            f"{why}, on {moment(ended.get('at_ms'))}{reason}. {certified} is certified. What had been done by then stays done.",
        )
    for one in certificate.get("topics_ended", ()):
        again = " and created again; the new one is another topic, to which nothing was done" * (
            one.get("what") == "topic-recreated"
        )
        yield _notice("warn", f"{one.get('topic')} was deleted", f"since{again}. Nothing is said of what it held.")
    if added := certificate.get("partitions_added"):
        places = ", ".join(place_text(one) for one in added)
        yield _notice("warn", "Partitions were added", f"after this was asked for, and are no part of it: {places}.")


def _notice(mood: str, what: str, text: str) -> Html:
    return tag("div", tag("b", what), tag("span", text), css=f"notice {mood}")


def _asked(certificate: Fields) -> Iterable[Html]:
    request, clock = part(certificate, "request"), part(certificate, "clock")
    received = f"On {moment(clock['requested_ms'])} this system was asked " if "requested_ms" in clock else "Asked was "
    topics = topics_of(certificate)
    where = ("the topic " if len(topics) == 1 else "the topics ", *_named(topics))
    if is_redaction(certificate):
        yield tag("p", received, "to remove from ", *where, " every record that matches a description.", _A_TOPIC)
        if shape := request.get("where_shape"):
            yield tag("code", shape, css="command")
            yield tag("p", "What is compared with is shown as “?” here, so that this page does not say it again.")
    else:
        wish = "to erase one key, the name under which data of one person or thing are stored, from "
        yield tag("p", received, wish, *where, ".", _A_TOPIC)
    yield tag("p", "Reason: ", tag("q", request.get("reason", "")))
    reference = request.get("reference")
    yield tag("p", "Reference: ", tag("q", reference) if reference else "none was given")


def _found(certificate: Fields) -> Iterable[Html]:
    found = certificate.get("found", ())
    if not found:
        yield tag("p", f"Nothing. All partitions of {_these(certificate)} were searched.")
        return
    if any("values" in one for one in found):
        values, copies, marks = (_sum(found, name) for name in ("values", "copies_on_disk", "tombstones"))
        yield tag(
            "p",
            tag("b", counted(values, "value"), " under this key"),
            f", in {counted(len(found), 'partition')} of {_these(certificate)}",
            f" ({number(copies)} on the disk, as files that wait to be deleted hold copies)"
            if copies != values
            else "",
            ".",
        )
        if marks:
            yield tag(
                "p", f"{counted(marks, 'deletion mark')} of the key {'was' if marks == 1 else 'were'} there already."
            )
    else:
        records, older, open_ones = (_sum(found, name) for name in ("records", "superseded", "undecided"))
        yield tag(
            "p",
            tag("b", counted(records, "record")),
            f", in {counted(len(found), 'partition')} of {_these(certificate)}",
            f"; {_older(older)} of what matched" if older else "",
            ".",
        )
        if open_ones:
            yield tag(
                "p",
                f"{counted(open_ones, 'more record')} belonged to a transaction that had not ended, and {_were(open_ones)} left.",
            )
    if is_redaction(certificate):
        yield tag(
            "p", "Records of transactions that were given up count as well: no program gets them, the files have them."
        )
    else:
        yield tag(
            "p", "Earlier versions count as well: files keep what was written before, for a while after it was changed."
        )


def _done(certificate: Fields) -> Iterable[Html]:
    done = certificate.get("done", ())
    written = [one for one in done if "tombstone_offset" in one]
    there = [one for one in done if "tombstone" in one]
    files = _sum(done, "files_removed_at_once")
    what = "the matching records" if is_redaction(certificate) else "the values"
    steps: list[object] = []
    if written:
        steps.append(
            f"A deletion mark was written in {counted(len(written), 'partition')}. Every system that follows the stream reads "
            "it, and is told by it to delete its own copy."
        )
    if there:
        steps.append(f"In {counted(len(there), 'partition')} there was one already, and no other was needed.")
    if done and certificate["state"] == "not-certified":
        steps.append(f"New files without {what} were to replace those that held them; below is said where that failed.")
    elif done:
        steps.append(f"The files that held {what} were replaced by new ones without them, and the old ones deleted.")
    if any("spark" in one.get("runners", ()) for one in done):
        steps.append("Apache Spark wrote new files; each was checked before it took the place of old ones.")
    if files:
        steps.append(
            f"{counted(files, 'old file')} that would have stayed for some more time {_were(files)} deleted at once."
        )
    if any(one.get("removed_before_horizon") for one in done):
        steps.append(
            "The deletion mark was removed as well, before its waiting time was over, because that was asked for."
        )
    elif certificate["state"] == "key-gone" and (written or there):
        steps.append("After its waiting time the deletion mark was removed, too.")
    if certificate.get("runs", 1) != 1:
        steps.append(f"It took {number(certificate['runs'])} runs, as it was interrupted or something was in its way.")
    steps.append("Then everything in the data directory was read again, to see what is left.")
    yield listed(steps)
    if (following := certificate.get("next")) is not None:
        yield tag(
            "p",
            "The deletion mark stays until ",
            tag("b", moment(following.get("due_ms"))),
            ", so that systems that are switched off for a while learn of the erasure, too. Then it is removed, and a second "
            "certificate follows by itself: that nothing names the key any more.",
        )


def _besides(coverage: Fields) -> str:
    """Return, for a sentence, which place besides the data directory was read."""
    staged = part(coverage, "staging")
    return f" and the staging place {staged.get('place')}" if staged.get("is_read") else ""


def _proven(certificate: Fields) -> Iterable[Html]:
    coverage, claims = part(certificate, "coverage"), certificate.get("claims", ())
    state = certificate["state"]
    words = {
        "key-gone": "no record with this key is left, neither a value nor a deletion mark",
        "values-gone": "no record with this key has a value any more; what is left names the key and holds no data",
        "records-gone": "no record that matches the description is left",
        "nothing-matched": "there is no record that matches the description, and none was removed"
        if is_redaction(certificate)
        else "there is no record with this key, and none was removed",
    }
    if state in words:
        where = "partition" if len(claims) == 1 else "partitions"
        yield tag("p", "In the ", tag("b", f"{counted(len(claims), where, where)}"), f" listed below, {words[state]}.")
    elif state == "not-certified":
        refused = certificate.get("not_certified", ())
        yield tag("p", tag("b", f"Nothing for {counted(len(refused), 'partition')}"), "; the list below says why.")
        if claims:
            held = ", ".join(sorted({state_text(one.get("state")) for one in claims}))
            yield tag("p", f"For {counted(len(claims), 'other partition')} it is proven: {held}.")
    else:
        yield tag("p", f"What is stated for {counted(len(claims), 'partition')} in the list below.")
    if part(certificate, "ended") and not coverage.get("files"):
        yield tag("p", "Nothing was read for this certificate.")
        return
    yield tag(
        "p",
        "To know that, the system read ",
        tag("b", counted(coverage.get("files"), "file")),
        f", all that its data directory{_besides(coverage)} holds, from beginning to end: {size(coverage.get('bytes'))} and "
        f"{size(coverage.get('decompressed_bytes'))} of decompressed data, {counted(coverage.get('records'), 'record')}. "
        "It relied on no index, no filter and no earlier result.",
    )
    problems = [*coverage.get("not_read", ()), *coverage.get("unreadable", ())]
    if problems:
        yield tag("p", f"{counted(len(problems), 'place')} could not be read; what that touches is not certified.")
    elif "ledger" in coverage:
        yield tag(
            "p",
            "There was nothing that could not be read. What was read was counted and held against what the files say they "
            "hold, file by file: nothing was passed over.",
        )
    else:
        yield tag("p", "There was nothing that could not be read.")
    yield tag(
        "p",
        "Each statement holds for the records below the position (“offset”) where it ends. What is written later is not "
        "part of it, and is named when the certificate is verified.",
    )
    if seen := seen_elsewhere(certificate):
        yield tag(
            "p",
            tag("b", f"Seen elsewhere, and left there: {seen}"),
            " that hold the same bytes; listed below."
            if is_redaction(certificate)
            else " with the same key in topics that were not named, or the same bytes under other keys; listed below.",
        )


def _verifying(certificate: Fields) -> Iterable[Html]:
    public_key = part(certificate, "signature").get("public_key")
    yield tag(
        "p",
        "This page only repeats the certificate; the signed original is the JSON file. Anybody can sign something, so what "
        "counts is ",
        tag("b", "whose"),
        " signature it is: get the issuer’s public key by another way than this one, and compare it with",
    )
    yield tag("code", public_key, css="command")
    if pem := _pem_line(public_key):
        yield tag("p", "or, as it stands in a .pem file,")
        yield tag("code", pem, css="command")
    yield tag("p", "Then have the signature checked, and, where the issuer’s broker runs, the files read again:")
    yield tag("code", "diamant verify certificate.json --public-key public.pem", css="command")
    yield tag(
        "p",
        "On another machine add --offline to check the signature alone. To check a copy of the data without a broker add --data "
        "with its directory, and --secret with the secret of the issuer’s broker",
        " and --where with the condition" if is_redaction(certificate) else "",
        ": without it nothing in a copy can be confirmed.",
    )
    yield tag(
        "p",
        "It says “valid”"
        + " (of this one: “NOTHING WAS FOUND”)" * (certificate["state"] == NOTHING_MATCHED)
        + ", and what has changed since; or what is wrong. A single changed letter makes the signature invalid.",
    )


def _pem_line(public_key: object) -> str:
    """Return an Ed25519 public key as the one line of its PEM; nothing for what is none."""
    try:
        data = bytes.fromhex(str(public_key))
    except ValueError:
        return ""
    return b64encode(_ED25519_PREFIX + data).decode() if len(data) == 32 else ""


def _named(topics: Sequence[str]) -> Iterable[object]:
    for index, topic in enumerate(topics):
        yield ", " if 0 < index < len(topics) - 1 else " and " if index else ""
        yield tag("b", topic)


def _sum(rows: Iterable[Fields], name: str) -> int:
    return sum(one.get(name, 0) for one in rows)


def _these(certificate: Fields) -> str:
    return "this topic" if len(topics_of(certificate)) == 1 else "these topics"


def _were(count: int) -> str:
    return "was" if count == 1 else "were"


def _older(count: int) -> str:
    return "1 of them is an older version" if count == 1 else f"{number(count)} of them are older versions"
