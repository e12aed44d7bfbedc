"""The certificate's page for people: it repeats the certificate, all of it is escaped text, and nothing is lost."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from diamant.cleaner.evidence.certificates.certificate import NOT_COVERED
from diamant.cleaner.evidence.certificates.page import MAX_ROWS, certificate_page
from diamant.cleaner.evidence.certificates.page_words import span
from diamant.cleaner.evidence.certificates.signing_key import SigningKey
from diamant.words import size

DAY_MS = 86_400_000
ISSUED_MS = 1_767_225_600_000
NASTY = """<script>alert("1")</script><img src=x onerror='y'>&amp;\""""


def certificate(**changes: Any) -> dict[str, Any]:
    """Return a certificate like that of an erasure in two partitions."""
    segment = {"file": "users-0/00000000000000000000.log", "size": 1234, "sha256": "ab" * 32}
    place = {"topic": "users", "partition": 0}
    return {
        "type": "diamant-erasure-certificate",
        "version": 1,
        "id": "0123456789abcdef",
        "state": "values-gone",
        "is_evidence": True,
        "clock": {"kind": "system", "requested_ms": ISSUED_MS - 2_000, "issued_ms": ISSUED_MS, "note": ""},
        "issuer": {"software": "Diamant 0.1.0", "cluster_id": "the-cluster", "node_id": 1},
        "request": {
            "reason": "GDPR Art. 17",
            "reference": "request 7",
            "topics": ["carts", "users"],
            "key_hmac": "cd" * 32,
            "key_bytes": 11,
            "hmac": "HMAC-SHA-256 with a secret",
        },
        "found": [
            {
                **place,
                "values": 2,
                "copies_on_disk": 3,
                "tombstones": 0,
                "offsets": [4, 8],
                "value_hmacs": [],
                "files": [],
            }
        ],
        "done": [{**place, "tombstone_offset": 12, "compactions": 1, "files_removed_at_once": 5}],
        "overrides": [],
        "claims": [
            {"topic": "carts", "partition": 0, "below_offset": 3, "state": "key-gone"},
            {**place, "below_offset": 13, "state": "values-gone"},
        ],
        "not_certified": [],
        "written_since": [],
        "written_since_not_listed": 0,
        "lost_tombstones": [],
        "elsewhere": [],
        "elsewhere_not_listed": 0,
        "segments": {"before": [segment], "before_root": "11" * 32, "after": [segment], "after_root": "22" * 32},
        "configuration": {
            "users": {"cleanup.policy": "compact", "delete.retention.ms": DAY_MS, "max.compaction.lag.ms": 2**63 - 1}
        },
        "coverage": {
            "files": 31,
            "files_by_sort": {"segment": 12, "index": 19},
            "bytes": 1_400_000,
            "decompressed_bytes": 900,
            "batches": 40,
            "records": 2_000,
            "files_gone_meanwhile": 0,
            "segments_after_the_recorded_end": 0,
            "engine": "plain",
            "duration_ms": 12,
            "unreadable": [],
            "values_searched_for": 2,
            "values_not_searched_for": 0,
            "least_bytes_of_a_searched_value": 12,
        },
        "next": {"state": "key-gone", "due_ms": ISSUED_MS + DAY_MS},
        "not_covered": list(NOT_COVERED),
        "signature": {"algorithm": "Ed25519", "public_key": "ef" * 32, "value": "99" * 64},
        **changes,
    }


class Reader(HTMLParser):
    """The tags, attributes and text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self._is_style = False
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attributes}
        self._is_style = tag == "style"

    def handle_endtag(self, _tag: str) -> None:
        self._is_style = False

    def handle_data(self, data: str) -> None:
        if not self._is_style:
            self.text += data


def text_of(**changes: Any) -> str:
    """Return the text that a reader of the page sees."""
    return Reader(certificate_page(certificate(**changes))).text


def test_the_plain_words_say_what_the_certificate_says() -> None:
    """Request, findings, steps, proof and what is not covered, with their figures, before any digest."""
    text = text_of()
    words, _, figures = text.partition("Figures and digests")
    for said in (
        "All values are gone",
        "GDPR Art. 17",
        "request 7",
        "from the topics carts and users",
        "2 values under this key, in 1 partition of these topics (3 on the disk",
        "A deletion mark was written in 1 partition",
        "5 old files that would have stayed",
        "stays until 2026-01-02 00:00:00 UTC",
        "In the 2 partitions listed below, no record with this key has a value any more",
        "31 files",
        "1.4 MB",
        "2,000 records",
        "There was nothing that could not be read",
        "diamant verify certificate.json --public-key public.pem",
        "On another machine add --offline",
        "--secret with the secret of the issuer’s broker: without it",
        "ef" * 32,
        *NOT_COVERED,
    ):
        assert said in words, said
    for said in (
        "users-0",
        "2: 4, 8",
        "ab" * 32,
        "11" * 32,
        "22" * 32,
        "cd" * 32,
        "1 day (86,400,000 ms)",
        "no limit",
    ):
        assert said in figures, said
    assert "not evidence" not in text


def test_each_state_has_its_own_words() -> None:
    """The words of one state are not used for another; a state without words is shown as it is."""
    gone = text_of(state="key-gone", next=None)
    assert "Everything stored under the key is gone" in gone
    assert "neither a value nor a deletion mark" in gone
    assert "the deletion mark was removed, too" in gone
    refused = [
        {
            "topic": "users",
            "partition": 0,
            "state": "inconclusive",
            "problems": [{"file": "f.log", "reason": "bad CRC"}],
        }
    ]
    failed = text_of(state="not-certified", claims=[], not_certified=refused, next=None)
    assert "Not certified" in failed
    assert "Nothing for 1 partition; the list below says why" in failed
    assert "f.log: bad CRC" in failed
    assert "is left, neither" not in failed
    unknown = text_of(state="half-gone", claims=[])
    assert "State: half-gone" in unknown
    assert (
        "no record" not in unknown.partition("Figures")[0].partition("What is proven")[2].partition("To know that")[0]
    )


SINCE = {"written_since": [{"topic": "users", "partition": 0, "offset": 20}]}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"is_evidence": False}, "This is not evidence."),
        (SINCE, "The key was written again."),
        (
            {**SINCE, "written_since_not_listed": 1_999},
            "Since then 2,000 new records with this key arrived in users-0.",
        ),
        (
            {**SINCE, "written_since_not_listed": 1_999},
            "1,999 further records are listed neither here nor in the JSON file.",
        ),
        (
            {"overrides": [{"topic": "users", "partition": 0, "what": "w", "groups_that_had_not_passed_it": ["g"]}]},
            "Known readers that had not seen it: g.",
        ),
        ({"lost_tombstones": [{"topic": "users", "partition": 0}]}, "A deletion mark went too early."),
        ({"elsewhere": [{"what": "same-key", "topic": "t", "partition": 3, "offset": 1}]}, "left there: 1 record"),
        ({"found": [], "done": []}, "Nothing. All partitions of these topics were searched."),
    ],
)
def test_a_warning_is_shown_only_with_a_reason(changes: dict[str, Any], said: str) -> None:
    """Warnings appear on the page only if the certificate gives reason for them."""
    assert said in text_of(**changes)
    assert said not in text_of()


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths to all values of a certificate other than objects and lists."""
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return [leaf for key, one in items for leaf in leaves(one, (*path, key))]
    return [path]


def changed(value: Any, path: tuple[Any, ...], leaf: Any) -> Any:
    """Return a copy of a certificate with one leaf replaced."""
    if not path:
        return leaf
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = changed(value[path[0]], path[1:], leaf)
    return copy


FULL = certificate(
    is_evidence=False,
    not_certified=[
        {"topic": "t", "partition": 0, "state": "s", "problems": [{"file": "f", "reason": "r"}], "below_offset": 1}
    ],
    written_since=[{"topic": "users", "partition": 0, "offset": 20, "file": "f"}],
    overrides=[{"topic": "users", "partition": 0, "what": "w", "groups_that_had_not_passed_it": ["g"]}],
    elsewhere=[{"what": "raw", "file": "f", "field": "value", "offset": 2}],
    something_new={"name": "value"},
)


ADDED_UP = {
    "values",
    "copies_on_disk",
    "tombstones",
    "files_removed_at_once",
    "elsewhere_not_listed",
    "written_since_not_listed",
}
TEXTS = [path for path in leaves(FULL) if path[-1] not in ADDED_UP]


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: "/".join(map(str, path)))
def test_every_text_of_a_certificate_is_text(path: tuple[Any, ...]) -> None:
    """Text in any field of a certificate is escaped: it becomes neither tag nor attribute."""
    page = certificate_page(changed(FULL, path, NASTY))
    plain = Reader(certificate_page(FULL))
    seen = Reader(page)
    assert seen.tags <= plain.tags
    assert seen.attributes == {"lang", "charset", "name", "content", "class"}
    assert "<script" not in page


def test_names_of_settings_and_of_new_fields_are_text() -> None:
    """Names in objects are escaped like their values."""
    page = certificate_page(certificate(**{NASTY: 1}, configuration={NASTY: {NASTY: NASTY}}))
    assert not {"script", "img"} & Reader(page).tags
    assert page.count("&lt;script&gt;") >= 4


def test_the_public_key_is_shown_as_in_its_file(tmp_path: Path) -> None:
    """The key has the form of the public key's file, so that the two can be compared."""
    key = SigningKey.load(str(tmp_path / "certificate.key"))
    signature = {"algorithm": "Ed25519", "public_key": key.public_bytes.hex(), "value": ""}
    assert key.public_pem.splitlines()[1] in text_of(signature=signature)
    assert ".pem file" not in text_of(signature={**signature, "public_key": "none"})


def test_the_page_needs_nothing_else() -> None:
    """The page has no script, no address, no external resource and no link."""
    page = certificate_page(FULL)
    seen = Reader(page)
    assert seen.tags.isdisjoint({"script", "img", "link", "iframe", "object", "a", "form", "svg"})
    assert not re.search(r"https?:|url\(|@import|src=|href=|\son\w+=", page)
    assert "@media print" in page
    assert "prefers-color-scheme:dark" in page


def test_fields_of_a_newer_certificate_are_shown_as_they_are() -> None:
    """Fields, kinds and states of a newer certificate are shown as they are, without an error."""
    coverage = {**certificate()["coverage"], "spill_places": ["/var/spill"], "bytes_at_rest": 7_000}
    text = text_of(
        type="diamant-other-certificate",
        state="other",
        coverage=coverage,
        request={"topic": "orders", "pattern_hmac": "77" * 32, "reason": "r"},
        witnesses=[{"name": "w"}],
    )
    for said in ("Spill places", "/var/spill", "7,000", "77" * 32, "Pattern hmac", "Witnesses", "name: w", "orders"):
        assert said in text, said


def test_nothing_is_shown_as_json() -> None:
    """What has no value is `none`; lists and objects are their parts, under names that say what they are."""
    coverage = {**certificate()["coverage"], "links_not_followed": [], "staging": None}
    request = {**certificate()["request"], "topic_ids": {"orders": "byiIGO6jQL2r", "users": "x"}}
    text = text_of(coverage=coverage, request=request)
    for said in (
        "Staging location of Spark",
        "Links not followednone",
        "orders: byiIGO6jQL2r; users: x",
        "Ids of the topics",
    ):
        assert said in text, said
    assert "null" not in text
    assert not {"[", "{"} & set(text)


def test_a_certificate_with_little_in_it_is_a_page() -> None:
    """Any certificate that `certificate.check_form` accepts can be shown."""
    least = {"type": "diamant-erasure-certificate", "version": 1, "state": "key-gone", "id": "1"}
    assert "Everything stored under the key is gone" in Reader(certificate_page(least)).text


def test_a_redaction_speaks_of_records() -> None:
    """The page of a redaction mentions neither keys nor deletion marks."""
    page = certificate_page(
        certificate(
            type="diamant-redaction-certificate",
            state="records-gone",
            request={
                "topics": ["orders"],
                "reason": "r",
                "where_hmac": "77" * 32,
                "where_shape": "value.email == ?",
                "all_records_agreed": False,
            },
            found=[{"topic": "orders", "partition": 0, "records": 3, "superseded": 1, "undecided": 2}],
            done=[{"topic": "orders", "partition": 0, "files_removed_at_once": 0}],
            written_since=[{"topic": "orders", "partition": 0, "offset": 20}],
            next=None,
        )
    )
    words = Reader(page).text.partition("Figures and digests")[0]
    for said in (
        "Certificate of redaction",
        "All records that matched are gone",
        "from the topic orders every record that matches",
        "value.email == ?",
        "3 records, in 1 partition of this topic; 1 of them is an older version",
        "2 more records may match: their values could not be read",
        "There are new records that match.",
        "no record that matches the description is left",
    ):
        assert said in words, said
    assert "eletion mark" not in words
    assert "key was" not in words


def test_a_failed_step_is_described_as_failed() -> None:
    """Failed steps are described as failed: files were to be replaced, a deletion mark could not be written."""
    assert "were replaced by new ones" in text_of()
    assert "were replaced by new ones" not in text_of(state="not-certified")
    step = {"topic": "users", "partition": 0, "tombstone_offset": 12}
    assert "After its waiting time" in text_of(state="key-gone", done=[step])
    overridden = text_of(state="key-gone", done=[{**step, "removed_before_horizon": True}])
    assert "before its waiting time was over, because that was asked for" in overridden
    assert "After its waiting time" not in overridden
    assert "It took 3 runs" in text_of(runs=3)
    assert "It took" not in text_of(runs=1)


def test_long_lists_are_cut_and_say_so() -> None:
    """Long tables are cut, and refer to the JSON file for the rest."""
    claims = [
        {"topic": "users", "partition": one, "below_offset": 1, "state": "key-gone"} for one in range(MAX_ROWS + 50)
    ]
    text = text_of(claims=claims)
    assert "50 more are in the JSON file." in text
    assert f"users-{MAX_ROWS - 1}" in text
    assert f"users-{MAX_ROWS}" not in text


def test_partitions_in_which_something_was_found_come_first() -> None:
    """Partitions with findings are listed before the others."""
    figures = text_of().partition("Figures and digests")[2]
    assert figures.index("users-0") < figures.index("carts-0")


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (1, "1 byte"),
        (999, "999 bytes"),
        (1_000, "1.0 kB"),
        (1_400_000, "1.4 MB"),
        (999_600, "1.0 MB"),
        (5 * 10**11, "500 GB"),
    ],
)
def test_sizes_for_people(count: int, text: str) -> None:
    """Sizes are shown in the largest unit that fits."""
    assert size(count) == text


@pytest.mark.parametrize(
    ("time_ms", "text"),
    [(DAY_MS, "1 day"), (90 * 60_000, "90 minutes"), (7 * DAY_MS, "7 days"), (1_500, "1,500 ms"), (0, "0 ms")],
)
def test_durations_for_people(time_ms: int, text: str) -> None:
    """Durations are shown in the greatest unit that divides them."""
    assert span(time_ms) == text


def test_a_refused_certificate_says_first_what_to_do() -> None:
    """Each place that is in the way once, before anything else, and that the broker tries again."""
    reason = "bytes to be removed are in this file, which belongs to no partition: remove it"
    problems = [{"file": "exports/dump.csv", "position": 2, "reason": reason}]
    refused = [
        {"topic": "users", "partition": index, "below_offset": 13, "state": "inconclusive", "problems": problems}
        for index in range(3)
    ]
    text = text_of(state="not-certified", claims=[], not_certified=refused, next=None)
    first = text.partition("What was asked")[0]
    assert first.count(f"exports/dump.csv: {reason}.") == 1
    assert "The broker tries again by itself" in first
    assert "below is said where that failed" not in text
    assert "The broker tries again" not in text_of()


def test_values_that_are_unknown_are_said_to_be() -> None:
    """An erasure that found nothing cannot look for copies of values that it does not know."""
    unknown = "So its values are unknown, and copies of them in other files were not looked for."
    assert unknown in text_of(state="nothing-matched", found=[], coverage={"values_searched_for": 0})
    assert unknown not in text_of(state="nothing-matched", found=[], coverage={"values_searched_for": 3})
