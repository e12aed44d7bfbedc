"""Blanked and corrected fields in a whole broker: the records stay, a scanner that shares no code with it checks their bytes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from diamant.broker.broker import Broker
from diamant.broker.erasure.redact.redact_result import Redaction
from diamant.broker.operation_errors import BadArgument, NotPossible
from diamant.cleaner.evidence.certificates.page import certificate_page
from diamant.protocol.batches.header import Header
from tests.broker.checked_certificate import check_certificate
from tests.broker.erasure.brokers import data_of, move_to
from tests.broker.erasure.constants import RETRY_MS, START_MS
from tests.broker.erasure.issued import pinned
from tests.broker.erasure.records import Producer
from tests.broker.redaction.test_redacting import EMAIL, KEEPS, OTHER, WHERE, create, fill, write
from tests.broker.stored import batches_of, records_of
from tests.cleaner.evidence.scan.naive_scanner import Seen, files_with, log_files, records_in
from tests.mutants import put_in
from tests.waiting import wait_until

ORDER = b'{"order": 7,\t"customer": { "email": "ada@example.com", "name" : "Ada Lovelace" , "city": "Bern"} }'
BLANKED = ORDER.replace(b'"Ada Lovelace"', b"null")
NAME = "value.customer.name"


async def blank(broker: Broker, *fields: str, where: str = WHERE, **options: Any) -> Redaction:
    return await broker.redact("orders", where=where, reason="GDPR Art. 17", blank=fields, **options)


def records(broker: Broker, topic: str = "orders", partition: int = 0) -> dict[int, Seen]:
    """Return the records in the partition's files by offset."""
    return {
        one.offset: one
        for path in log_files(data_of(broker), topic)
        if path.parent.name == f"{topic}-{partition}" and path.name.endswith(".log")
        for one in records_in(path)
    }


@pytest.mark.parametrize("codec", range(5))
async def test_a_blanked_record_stays_where_it_was(broker: Broker, codec: int) -> None:
    """Only the bytes of the named field change; no file has the old ones; all other records stay as they are."""
    await create(broker)
    fill(broker)
    at = write(broker, OTHER, ORDER, OTHER, codec=codec, headers=(Header("h", b"1"),))
    fill(broker)
    before = records(broker)
    redaction = await blank(broker, NAME)
    assert (redaction.state, redaction.removed) == ("fields-blanked", 1)
    after = records(broker)
    assert after.pop(at + 1) == before.pop(at + 1)._replace(value=BLANKED)
    assert after == before
    assert files_with(data_of(broker), b"Ada Lovelace") == []
    assert redaction.certificate["request"]["fields"] == [{"field": NAME, "becomes": "null"}]
    assert redaction.certificate["elsewhere"] == []


async def test_the_claim_is_about_the_fields(broker: Broker) -> None:
    """Verified again it holds, although the record still matches; a field that is written again is listed as written since."""
    await create(broker)
    write(broker, ORDER)
    fill(broker)
    redaction = await blank(broker, NAME)
    for since in (0, 1):
        found = await check_certificate(
            broker, redaction.certificate, public_key=pinned(redaction.certificate), where=WHERE
        )
        assert [(one["verdict"], one["state_now"], one["written_since"]) for one in found.claims] == [
            ("holds", "fields-blanked", since)
        ]
        write(broker, ORDER)


async def test_what_is_blank_already_needs_no_change(broker: Broker) -> None:
    """The second of two requests changes nothing, and says that the fields are blank."""
    await create(broker)
    write(broker, ORDER)
    fill(broker)
    first = await blank(broker, NAME)
    files = {path: path.read_bytes() for path in log_files(data_of(broker), "orders")}
    second = await blank(broker, NAME)
    assert (first.removed, second.removed, second.state) == (1, 0, "fields-blanked")
    assert second.certificate["found"][0]["unchanged"] == 1
    assert second.unmatched is None
    assert {path: path.read_bytes() for path in files} == files


async def test_a_corrected_field_has_the_given_value(broker: Broker) -> None:
    """The certificate has the value as a digest only, so verifying takes it once more."""
    await create(broker)
    write(broker, ORDER)
    fill(broker)
    given = f'{NAME}="Ada L."'
    redaction = await broker.redact("orders", where=WHERE, reason="GDPR Art. 16", set=[given])
    assert records(broker)[0].value == ORDER.replace(b"Ada Lovelace", b"Ada L.")
    assert "Ada L." not in json.dumps(redaction.certificate)
    assert "a given value" in certificate_page(redaction.certificate)
    for said, verdict in (([given], "holds"), ([], "cannot be told"), ([f'{NAME}="Ada"'], "cannot be told")):
        found = await broker.verify(redaction.certificate, where=WHERE, set=said)
        assert [one["verdict"] for one in found.claims] == [verdict]


async def test_a_header_is_blanked(broker: Broker) -> None:
    """Its name stays, its value is null or the fixed text."""
    await create(broker)
    write(broker, ORDER, headers=(Header("user", b"Ada Lovelace"), Header("kind", b"order")))
    fill(broker)
    await blank(broker, "header.user", NAME, blank_with="text:***")
    log = broker.node.topics.log("orders", 0)
    assert records_of(log)[0].headers == (Header("user", b"***"), Header("kind", b"order"))
    assert records(broker)[0].value == ORDER.replace(b"Ada Lovelace", b"***")
    await blank(broker, "header.user")
    assert records_of(log)[0].headers[0] == Header("user", None)


async def test_a_blanked_value_is_still_the_latest_of_its_key(broker: Broker) -> None:
    """On a compacted topic, older values of the key are blanked where they match, and removed where they do not."""
    await create(broker, cleanup_policy="compact", min_compaction_lag_ms="86400000")
    write(broker, b'{"customer": {"name": "Ada Lovelace", "email": "old@example.com"}}')
    write(broker, ORDER)
    fill(broker)
    write(broker, ORDER)
    write(broker, OTHER, key=b"other")
    redaction = await blank(broker, NAME)
    assert (redaction.state, redaction.removed) == ("fields-blanked", 13)
    assert {at: one.value for at, one in records(broker).items()} == {1: BLANKED, 12: BLANKED, 13: OTHER}


async def test_a_record_that_cannot_be_blanked_is_undecided(broker: Broker) -> None:
    """It stays, is named with the reason, and its partition is not certified. If it is to be kept, the rest is certified."""
    await create(broker)
    nested = b'{"customer": {"email": "ada@example.com"}, "raw": "{\\"name\\": \\"Ada Lovelace\\"}"}'
    write(broker, ORDER, nested)
    fill(broker)
    redaction = await blank(broker, "value.raw.name")
    assert redaction.state == "not-certified"
    assert redaction.certificate["ended"]["what"] == "undecided-records"
    assert redaction.certificate["found"][0]["undecided_offsets"] == [1]
    reason = redaction.certificate["not_certified"][0]["problems"][0]["reason"]
    assert reason.startswith("this record matches but cannot be changed, or")
    redaction = await blank(broker, NAME, blank_with="default", undecided="keep")
    assert (redaction.state, redaction.removed, redaction.fields_not_seen) == ("fields-blanked", 0, [])
    assert redaction.certificate["overrides"][0]["offsets"] == [0]
    assert redaction.certificate["overrides"][0]["what"].startswith("Records that match but cannot be changed")
    page = certificate_page(redaction.certificate)
    assert "1 matching record could not be changed: JSON has no default (first: orders-0@0)." in page
    assert "1 record could not be changed; in all others" in page
    assert "except for those that could not be changed" in page
    assert not [text for text in ("path may be wrong", "more record may match", "had not ended") if text in page]
    assert records(broker)[1].value == nested
    checked = await check_certificate(
        broker, redaction.certificate, public_key=pinned(redaction.certificate), where=WHERE
    )
    assert checked.claims[0]["verdict"] == "holds"


async def test_a_record_that_only_may_match_does_not_make_a_path_look_wrong(broker: Broker) -> None:
    """No record is known to match, so nothing is said about the fields; the page says what was not decided."""
    await create(broker)
    write(broker, ORDER + b" and more")
    fill(broker)
    redaction = await blank(broker, NAME)
    assert (redaction.state, redaction.fields_not_seen) == ("not-certified", [])
    page = certificate_page(redaction.certificate)
    assert "1 more record may match: its value could not be read." in page


async def test_a_batch_that_would_no_longer_fit_is_refused(broker: Broker) -> None:
    """The error names the batch and the limit, and nothing is changed; a shorter replacement passes."""
    await create(broker, max_message_bytes="400")
    write(broker, ORDER)
    fill(broker)
    with pytest.raises(NotPossible, match=r"orders-0: the batch at offset 0 has .* max\.message\.bytes is 400"):
        await blank(broker, NAME, blank_with=f"text:{'*' * 300}")
    assert records(broker)[0].value == ORDER
    assert (await blank(broker, NAME)).state == "fields-blanked"


async def test_nothing_changes_without_consent_if_every_record_matches(broker: Broker) -> None:
    """If every record matches, nothing is blanked without consent, as nothing is removed."""
    await create(broker)
    write(broker, ORDER)
    with pytest.raises(NotPossible, match="set yes_all to change them all"):
        await blank(broker, NAME)
    assert (await blank(broker, NAME, yes_all=True)).state == "fields-blanked"


async def test_a_path_that_no_record_has_does_not_look_like_success(broker: Broker) -> None:
    """The answer and the page name it; nothing changes."""
    await create(broker)
    write(broker, ORDER)
    fill(broker)
    redaction = await blank(broker, NAME, "value.customer.nmae", "header.user")
    assert redaction.fields_not_seen == ["value.customer.nmae", "header.user"]
    assert "No record that matches has value.customer.nmae" in certificate_page(redaction.certificate)
    assert records(broker)[0].value == BLANKED


async def test_sabotage_is_caught(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scan finds a record that the rewriting left as it was, and nothing is certified."""
    await create(broker)
    write(broker, ORDER, OTHER)
    put_in(monkeypatch, KEEPS)
    redaction = await blank(broker, NAME)
    assert [one["state"] for one in redaction.certificate["not_certified"]] == ["records-present"]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"blank": ["key.id"]}, "keys cannot change"),
        ({"blank": ["value"]}, "expected a field of the value"),
        ({"blank": ["value.a", "value.a.b"]}, "named twice, or is part"),
        ({"blank": ["value.a b"]}, "nothing after it"),
        ({"blank": ["body.a"]}, "blank: at character 1: expected value or header"),
        ({"blank": ["value.a"], "blank_with": "zero"}, "expected null, default, empty or a fixed string"),
        ({"blank_with": "empty"}, "there is no field to blank"),
        ({"blank": ["value.a"], "undecided": "remove"}, "undecided: expected hold or keep"),
        ({"set": ["value.a=1"], "undecided": "remove"}, "undecided: expected hold or keep"),
        ({"set": ["value.a"]}, "expected a field, = and its value"),
        ({"set": ["value.a=Ada"]}, """a string needs quotes, as in --set 'value.name="Ada L."'"""),
        ({"set": ["value.a=NaN"]}, "is not JSON"),
        ({"set": ["header.a=1"]}, "a string or null"),
        ({"set": ['value.a="x"'], "blank": ["value.a"]}, "named twice"),
        ({"set": [f'value.a="{EMAIL}!"'], "reason": f"now {EMAIL}!"}, "must not contain"),
    ],
)
async def test_bad_requests_are_refused(broker: Broker, options: dict[str, Any], error: str) -> None:
    """Each error says what was expected."""
    await create(broker)
    with pytest.raises(BadArgument, match=error):
        await broker.redact("orders", **{"where": "value.id == 7", "reason": "r", **options})


async def test_transactions_stay_as_they_are(broker: Broker) -> None:
    """Committed and aborted records are blanked within their transactions; those of an open one wait until it has ended."""
    await create(broker)
    fill(broker, 2)
    producer = Producer(broker, "orders", 0, 5)
    producer.write((b"k", ORDER))
    producer.end(is_commit=False)
    producer.write((b"k", OTHER), (b"k", ORDER), codec=4)
    producer.end(is_commit=True)
    producer.write((b"k", ORDER))
    before = batches_of(broker.node.topics.log("orders", 0))
    redaction = await blank(broker, NAME)
    assert (redaction.state, redaction.removed) == ("not-certified", 2)
    assert redaction.certificate["claims"][0] == {
        "topic": "orders", "partition": 0, "below_offset": 7, "state": "fields-blanked"
    }  # fmt: skip
    producer.end(is_commit=True)
    move_to(broker, START_MS + RETRY_MS)
    await wait_until(lambda: not broker.services.redactions().queue.unfinished())
    log = broker.node.topics.log("orders", 0)
    after = batches_of(log)
    assert [one.value for one in records_of(log) if EMAIL.encode() in (one.value or b"")] == [BLANKED] * 3
    kept = ("base_offset", "last_offset_delta", "producer_id", "producer_epoch", "base_sequence", "record_count",
            "base_timestamp", "max_timestamp", "attributes", "partition_leader_epoch")  # fmt: skip
    assert [[getattr(one, name) for name in kept] for one, _ in after[: len(before)]] == [
        [getattr(one, name) for name in kept] for one, _ in before
    ]
    assert [(one.producer_id, one.first_offset) for segment in log.segments for one in segment.txn_index.all()] == [
        (5, 2)
    ]


async def test_a_value_of_10_mb_is_blanked(broker: Broker) -> None:
    """A value of 10 MB in a compressed batch is blanked, among others."""
    await create(broker, max_message_bytes="20000000", internal_segment_bytes="30000000")
    big = json.dumps({"customer": {"email": EMAIL, "name": "Ada Lovelace"}, "pad": ["x" * 99] * 100_000}).encode()
    write(broker, OTHER, big, codec=4)
    redaction = await blank(broker, NAME)
    assert redaction.state == "fields-blanked"
    assert records(broker)[1].value == big.replace(b'"Ada Lovelace"', b"null")


async def test_several_fields_change_in_one_rewriting(broker: Broker) -> None:
    """Fields of all records that match, whichever of the fields they have; tombstones and records without a value stay."""
    await create(broker)
    write(broker, ORDER, None, b'{"customer": {"email": "ada@example.com"}}', OTHER)
    asked = {"where": f'{WHERE} or key == "k"', "set": ['value.customer.city="Basel"'], "blank_with": "empty"}
    redaction = await blank(broker, NAME, "value.order", yes_all=True, **asked)
    assert redaction.fields_not_seen == []
    assert {at: one.value for at, one in records(broker).items()} == {
        0: ORDER.replace(b"Ada Lovelace", b"").replace(b"7", b"0").replace(b"Bern", b"Basel"),
        1: None,
        2: b'{"customer": {"email": "ada@example.com"}}',
        3: OTHER.replace(b"8", b"0"),
    }
