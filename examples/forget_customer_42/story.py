"""What happens, step by step, and what is claimed of it. Every claim is looked at when it is made."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

from rich.text import Text

from diamant.broker.client.admin import Admin
from examples.forget_customer_42 import proof
from examples.forget_customer_42.broker import BrokerProcess
from examples.forget_customer_42.copies import CustomerCopy
from examples.forget_customer_42.orders import committed_orders
from examples.forget_customer_42.proof import Folder, verify
from examples.forget_customer_42.raw_files import Sighting, search_bytes, search_records, segment_count
from examples.forget_customer_42.shop import (
    COUNT,
    CUSTOMERS,
    EMAIL,
    FORGOTTEN,
    INVOICES,
    NEWSLETTER,
    ORDERS,
    PERSONAL,
    TOPICS,
    Shop,
    create_topics,
)
from examples.forget_customer_42.telling import Teller, count_cell

HOUR_MS = 3_600_000
REASON = "GDPR Art. 17"
REFERENCE = "request 117"
WHERE = f'value.customer.email == "{EMAIL}"'
WHERE_INVOICES = "value.customer == 42"
ALL_TEXTS = (*PERSONAL, FORGOTTEN)


class Story:
    """One run, in a directory of its own: `data` is the broker's, the rest belongs to others."""

    def __init__(self, directory: Path, broker: BrokerProcess, teller: Teller) -> None:
        self.directory = directory
        self._broker = broker
        self._data = broker.data
        self._teller = teller
        self._admin = Admin(broker.bootstrap)
        self._folder = Folder(directory / "certificates", self._admin)
        self._shop = Shop(broker.bootstrap, self._now_ms)
        self._ahead_ms = 0
        self._crm = self._copy("crm")
        self._reporting = self._copy("reporting")
        self._analytics = self._copy("analytics")
        self._orders: dict[tuple[int, int], str] = {}
        """As consumers got them before anything was redacted."""
        self._due_ms = 0
        """When the deletion marks go."""
        self._certificates: dict[str, Path] = {}

    def tell(self) -> None:
        """From the opening of the shop to the last verification. ClaimFailed if anything is not as it is told."""
        try:
            self._open_the_shop()
            self._three_days()
            self._where_it_lies()
            self._why_it_is_still_there()
            self._erase()
            self._redact()
            self._blank()
            self._who_has_heard_of_it()
            self._after_the_horizon()
            self._what_is_not_covered()
            self._verify()
        finally:
            self._crm.stop()

    # -- before ----------------------------------------------------------------------------------------------------------

    def _open_the_shop(self) -> None:
        say = self._teller
        say.chapter("A shop opens")
        say.say(
            f"`diamant start` runs as a process of its own and listens on {self._broker.bootstrap}. Its clock is one that can be "
            "moved, so that days pass in no time."
        )
        create_topics(self._broker.bootstrap)
        self._crm.start()
        rows = [[name, one.configs["cleanup.policy"], one.compression, one.holds] for name, one in TOPICS.items()]
        say.table(("topic", "policy", "compression", "holds"), rows)
        key = self._folder.pin()
        say.say(
            "The data protection officer gets the public key of this broker today, before there is anything to sign:"
        )
        say.say(f"- {key.splitlines()[1]}")

    def _three_days(self) -> None:
        say = self._teller
        say.chapter("Three days of business")
        for day in range(1, 4):
            if day > 1:
                self._admin.clock.advance("1d")
            self._ahead_ms = self._admin.clock.get()["ahead_ms"]
            asyncio.run(self._shop.do_business())
            if day == 1:
                self._reporting.catch_up()
                self._analytics.catch_up()
        self._admin.clock.advance("1h")
        segments = {name: segment_count(self._data, name) for name in TOPICS}
        say.say(
            f"{COUNT} customers register, some move, some order; aiokafka sends {self._shop.records} records. Orders are "
            "transactions; one a day is aborted, for a card was declined."
        )
        say.say(
            "Three programs follow the customers with confluent-kafka and keep a copy in SQLite: `crm` all the time, "
            "`reporting` and `analytics` on the first day only; then they are switched off."
        )
        shown = ", ".join(f"{name} {count}" for name, count in segments.items())
        say.claim(
            all(count > TOPICS[name].partitions for name, count in segments.items()),
            f"each topic has several segments on the disk: {shown}",
            segments,
        )
        self._crm.wait_until(lambda: self._crm.size() == COUNT, f"has {COUNT} customers")
        sizes = {copy.group: copy.size() for copy in (self._crm, self._reporting, self._analytics)}
        say.claim(set(sizes.values()) == {COUNT}, f"all three copies have {COUNT} customers", sizes)

    # -- the request -----------------------------------------------------------------------------------------------------

    def _where_it_lies(self) -> None:
        say = self._teller
        say.chapter(f"Customer 42 asks to be forgotten. Where is {EMAIL}?")
        as_bytes, in_records = self._show_sightings(
            "The files are searched without asking the broker: for the bytes as they are, as `grep` does, and in the records "
            "that aiokafka's own reader decompresses."
        )
        say.claim(
            as_bytes[NEWSLETTER] == in_records[NEWSLETTER] > 0,
            f"newsletter is not compressed: grep would find it, {as_bytes[NEWSLETTER]} times",
            as_bytes,
        )
        for topic in (CUSTOMERS, ORDERS):
            say.claim(
                as_bytes[topic] < in_records[topic],
                f"{topic} is compressed ({TOPICS[topic].compression}): grep would find {as_bytes[topic]} of "
                f"{in_records[topic]} records that have it",
                as_bytes,
            )
        on_disk = self._records_with_email(ORDERS)
        self._orders = asyncio.run(committed_orders(self._broker.bootstrap))
        aborted = len(on_disk) - sum(1 for email in self._orders.values() if email == EMAIL)
        say.claim(
            aborted > 0,
            f"{aborted} of these {len(on_disk)} orders were aborted: no consumer of committed records gets them, the files have "
            "them",
            aborted,
        )

    def _why_it_is_still_there(self) -> None:
        say = self._teller
        say.chapter("customers is compacted. Why are older records still there?")
        say.call(f'admin.explain("{CUSTOMERS}", key="{FORGOTTEN}")')
        found = self._admin.explain(CUSTOMERS, key=FORGOTTEN)
        records = [record for one in found["partitions"] for record in one["records"]]
        rows = []
        for record in records:
            gate = record["gates"][0]["text"] if record["gates"] else "-"
            goes = "never" if record["goes_ms"] is None else _time(record["goes_ms"])
            rows.append([str(record["offset"]), record["status"], gate, goes])
        say.table(("offset", "is", "kept by", "goes by itself"), rows)
        live = sum(1 for record in records if record["status"] == "live")
        say.claim(
            live == 1 < len(records),
            f"{len(records)} records are on the disk, 1 of them is current; compaction has not come to the others yet",
            rows,
        )

    def _erase(self) -> None:
        say = self._teller
        say.chapter("Erase the key")
        say.call(
            f'admin.erase("{FORGOTTEN}", ["{CUSTOMERS}", "{NEWSLETTER}"], reason="{REASON}", reference="{REFERENCE}")'
        )
        began = time.monotonic()
        found = self._admin.erase(FORGOTTEN, [CUSTOMERS, NEWSLETTER], reason=REASON, reference=REFERENCE)
        took_s = time.monotonic() - began
        self._due_ms = found["next_due_ms"]
        certificate = found["certificate"]
        values = sum(one["values"] for one in certificate["found"])
        say.say(
            f"In {took_s:.1f} s: {values} values found in {len(certificate['found'])} partitions, a tombstone written to each, "
            f"both topics compacted, {certificate['coverage']['files']} files read again, a certificate signed."
        )
        say.claim(found["state"] == "values-gone", "the certificate says: values-gone", found["state"])
        left = self._sightings((CUSTOMERS, NEWSLETTER))
        say.claim(
            not [one for one in left if one.text in PERSONAL],
            "the files of these two topics hold neither name nor e-mail",
            left,
        )
        marks = {(one.partition, one.offset) for one in left if one.field == "key"}
        say.claim(
            len(marks) == len(certificate["found"]) and not [one for one in left if one.field == "value"],
            f"what is left are {len(marks)} tombstones, which name the key so that other programs learn of it",
            left,
        )
        self._certificates["values-gone"] = self._folder.keep("values-gone", certificate)

    def _redact(self) -> None:
        say = self._teller
        say.chapter("Redact the orders")
        say.say("orders has no key to erase: it is never compacted, and the e-mail is inside the values.")
        before = len(self._records_with_email(ORDERS))
        say.call(f'admin.redact("{ORDERS}", \'{WHERE}\', reason="{REASON}", reference="{REFERENCE}")')
        found = self._admin.redact(ORDERS, WHERE, reason=REASON, reference=REFERENCE)
        say.claim(found["state"] == "records-gone", "the certificate says: records-gone", found["state"])
        say.claim(found["removed"] == before, f"{before} records removed, the aborted ones, too", found["removed"])
        left = self._sightings((ORDERS,))
        say.claim(not left, "the segments were written anew without them: the search finds nothing in orders", left)
        orders = asyncio.run(committed_orders(self._broker.bootstrap))
        others = {place: email for place, email in self._orders.items() if email != EMAIL}
        say.claim(
            orders == others, f"a consumer gets all {len(others)} other orders, at the offsets they had", len(orders)
        )
        self._certificates["orders"] = self._folder.keep("orders", found["certificate"])

    def _blank(self) -> None:
        say = self._teller
        say.chapter("Blank a field of the invoices")
        say.say(
            "Invoices must stay for ten years, the names in them need not. They are in Avro; the broker finds their schema in "
            "its own topic `_schemas`."
        )
        before = self._invoices()
        say.call(f'admin.redact("{INVOICES}", "{WHERE_INVOICES}", blank=["value.name"], reason="{REASON}", ...)')
        found = self._admin.redact(INVOICES, WHERE_INVOICES, blank=["value.name"], reason=REASON, reference=REFERENCE)
        say.claim(found["state"] == "fields-blanked", "the certificate says: fields-blanked", found["state"])
        left = self._sightings((INVOICES,))
        say.claim(not left, "the search finds nothing in invoices", left)
        after = self._invoices()
        say.claim(after == before, f"all {len(before)} invoices are there, at the offsets they had", after)
        self._certificates[INVOICES] = self._folder.keep(INVOICES, found["certificate"])

    # -- those who keep copies -------------------------------------------------------------------------------------------

    def _who_has_heard_of_it(self) -> None:
        say = self._teller
        say.chapter("Who has heard of it?")
        self._crm.wait_until(lambda: not self._crm.knows(FORGOTTEN), "deletes customer 42")
        say.claim(
            self._crm.tombstones_seen > 0 and self._crm.size() == COUNT - 1,
            f"crm saw the tombstone, and its SQLite copy has {COUNT - 1} customers now",
            self._crm.size(),
        )
        say.call(f'admin.explain("{CUSTOMERS}", tombstones=True)')
        behind = self._groups_behind()
        say.claim(
            behind == {"reporting", "analytics"},
            "the broker knows who has not: the groups analytics and reporting",
            behind,
        )
        say.say(
            f"They have until {_time(self._due_ms)}; then the tombstones go. An hour before that somebody switches reporting on."
        )
        self._admin.clock.set(self._due_ms - HOUR_MS)
        self._reporting.catch_up()
        say.claim(
            not self._reporting.knows(FORGOTTEN),
            "reporting was days behind, and still learned of it: customer 42 is gone from its copy",
        )
        behind = self._groups_behind()
        say.claim(behind == {"analytics"}, "only analytics is behind now, and stays switched off", behind)

    def _after_the_horizon(self) -> None:
        say = self._teller
        say.chapter("Time passes")
        say.say("Then the tombstones may go: the cleaner removes them, and everything is read once more.")
        say.call('admin.clock.advance("2d")')
        self._admin.clock.advance("2d")
        erasure_id = _read(self._certificates["values-gone"])["id"]
        certificate = self._admin.call("GET", f"/v1/certificates/{erasure_id}")
        say.claim(
            certificate["state"] == "key-gone",
            "the second certificate has come by itself: key-gone",
            certificate["state"],
        )
        self._certificates["key-gone"] = self._folder.keep("key-gone", certificate)
        self._show_sightings("All files again, now for the key, too:", ALL_TEXTS)
        left = self._sightings(None)
        say.claim(not left, f"no file of the broker holds {', '.join(ALL_TEXTS)}", left)
        log = self._broker.log.read_text()
        say.claim(not [text for text in ALL_TEXTS if text in log], "and neither does its log")

    def _what_is_not_covered(self) -> None:
        say = self._teller
        say.chapter("What no broker can do")
        self._analytics.catch_up()
        say.claim(
            self._analytics.knows(FORGOTTEN) and self._analytics.tombstones_seen == 0,
            "analytics comes back too late: it never saw a tombstone, and its copy still has customer 42",
        )
        say.say(
            "That is why groups behind are named before it is too late, and why each certificate says what it does not cover:"
        )
        for text in _read(self._certificates["key-gone"])["not_covered"][:3]:
            say.say(f"- {text}")

    # -- the proof -------------------------------------------------------------------------------------------------------

    def _verify(self) -> None:
        say = self._teller
        say.chapter("Is it true?")
        pinned = ("--public-key", str(self._folder.public_key))
        asked = ("--bootstrap-server", self._broker.bootstrap)
        say.call("diamant verify CERTIFICATE --public-key public.pem (of redactions: --where, to look for it again)")
        where = {ORDERS: WHERE, INVOICES: WHERE_INVOICES}
        for name, file in self._certificates.items():
            found = verify(file, *pinned, *asked, *(("--where", where[name]) if name in where else ()))
            say.claim(found.code == proof.VALID, f"{name}.json: {found.first_line}", found.said)
        found = verify(self._certificates["values-gone"], *asked)
        say.claim(
            found.code == proof.NOT_SO and "untrusted signer" in found.said,
            f"without the pinned key: {found.first_line}",
            found.said,
        )
        forged = self._folder.tamper(self._certificates["values-gone"], state="key-gone", next=None)
        found = verify(forged, *pinned, *asked)
        say.claim(
            found.code == proof.NOT_SO and "signature is not valid" in found.said,
            f"with one word changed, values-gone to key-gone: {found.first_line}",
            found.said,
        )
        self._crm.stop()
        self._broker.stop()
        secret = self.directory / "keys" / "certificate.key.secret"
        found = verify(self._certificates["key-gone"], *pinned, "--data", str(self._data), "--secret", str(secret))
        say.claim(
            found.code == proof.VALID, f"the broker is stopped; from its files alone: {found.first_line}", found.said
        )
        say.say(
            "The broker's clock could be moved, so each of these certificates says of itself that it is not evidence."
        )

    # -- what is looked at -----------------------------------------------------------------------------------------------

    def _show_sightings(self, text: str, texts: tuple[str, ...] = (EMAIL,)) -> tuple[Counter[str], Counter[str]]:
        """Search everything and show how often the texts are there: as bytes, and in how many records; both by topic."""
        self._teller.say(text)
        as_bytes = Counter(one.topic for one in search_bytes(self._data, texts))
        records = {(one.topic, one.file, one.offset) for one in search_records(self._data, texts)}
        in_records = Counter(topic for topic, _, _ in records)
        rows: list[list[str | Text]] = [
            [
                topic,
                TOPICS[topic].compression if topic in TOPICS else "-",
                count_cell(as_bytes[topic]),
                count_cell(in_records[topic]),
            ]
            for topic in [*TOPICS, *sorted((as_bytes.keys() | in_records.keys()) - TOPICS.keys())]
        ]
        self._teller.table(("topic", "compression", "found as bytes", "in records, decompressed"), rows)
        return as_bytes, in_records

    def _sightings(self, topics: tuple[str, ...] | None) -> list[Sighting]:
        """What is found of the person and the key, both ways; in some topics, or in all files."""
        found = [*search_bytes(self._data, ALL_TEXTS), *search_records(self._data, ALL_TEXTS)]
        return [one for one in found if topics is None or one.topic in topics]

    def _records_with_email(self, topic: str) -> set[tuple[str, int | None]]:
        """File and offset of each record on the disk."""
        return {(one.file, one.offset) for one in search_records(self._data, (EMAIL,)) if one.topic == topic}

    def _invoices(self) -> set[int | None]:
        """Their offsets in the files."""
        return {one.offset for one in search_records(self._data, ("invoice-",)) if one.topic == INVOICES}

    def _groups_behind(self) -> set[str]:
        found = self._admin.explain(CUSTOMERS, tombstones=True)
        return {group for one in found["partitions"] for record in one["records"] for group in record["groups_behind"]}

    def _copy(self, group: str) -> CustomerCopy:
        return CustomerCopy(self._broker.bootstrap, group, self.directory / f"{group}.sqlite")

    def _now_ms(self) -> int:
        """The broker's clock, which runs with the real one, ahead by what it was moved."""
        return int(time.time() * 1000) + self._ahead_ms


def _read(certificate: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(certificate.read_text())
    return found


def _time(time_ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(time_ms / 1000))
