"""What happens, step by step, and what is claimed of it. Every claim is looked at when it is made."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections import Counter
from pathlib import Path
from typing import Any

from diamant.broker.client.admin import Admin
from examples.find_customer_42 import commands
from examples.find_customer_42.commands import Found, broker_settings, find, find_command
from examples.find_customer_42.records import (
    CONSENTS,
    PARTITIONS,
    TOPICS,
    create_topics,
    write_devices,
    write_profiles,
)
from examples.forget_customer_42 import proof
from examples.forget_customer_42.broker import BrokerProcess
from examples.forget_customer_42.proof import Folder, verify
from examples.forget_customer_42.raw_files import search_bytes, search_records
from examples.forget_customer_42.shop import EMAIL, FORGOTTEN, NAME
from examples.forget_customer_42.telling import Teller

REASON = "GDPR Art. 17"
REFERENCE = "request 118"
PATTERN = rf"{FORGOTTEN}\b|{EMAIL}"
PERSONAL = (NAME, EMAIL)
SPARK, LOCAL = "spark", "local"


class Story:
    """One run, in a directory of its own: `data` is the broker's, `copy` a second broker's, `keys` belong to both."""

    def __init__(self, directory: Path, teller: Teller) -> None:
        self.directory = directory
        self._key = directory / "keys" / "certificate.key"
        self._data = directory / "data"
        self._copy = directory / "copy"
        self._teller = teller
        self._found: list[Found] = []
        self._certificates: dict[str, dict[str, Any]] = {}

    def tell(self) -> None:
        """From the first record to the last verification. ClaimFailed if anything is not as it is told."""
        proof.make_key(self._key)
        with self._broker(self._data) as broker:
            self._write(broker)
            self._find()
        shutil.copytree(self._data, self._copy)
        with self._broker(self._data) as broker:
            self._erase_on_spark(broker)
            with self._broker(self._copy) as other:
                self._erase_locally(other)
            self._compare()
            self._verify(broker)

    def _broker(self, data: Path) -> BrokerProcess:
        log = self.directory / f"{data.name}.log"
        return BrokerProcess(data, self._key, log, broker_settings())

    # -- before ----------------------------------------------------------------------------------------------------------

    def _write(self, broker: BrokerProcess) -> None:
        say = self._teller
        say.chapter("Two services, three topics, 36 partitions")
        create_topics(broker.bootstrap)
        count = asyncio.run(write_profiles(broker.bootstrap)) + write_devices(broker.bootstrap)
        # Whatever is written from here on gets the same time in both directories, and so the same bytes.
        Admin(broker.bootstrap).clock.freeze()
        rows = [[name, str(PARTITIONS), *about] for name, about in TOPICS.items()]
        say.table(("topic", "partitions", "written by", "compression", "holds"), rows)
        say.say(
            f"{count:,} records, all with the customer as the key. The topics are compacted, the cleaner was not there yet."
        )
        partitions = sum(1 for name in TOPICS for _ in self._data.glob(f"{name}-*"))
        say.claim(partitions == len(TOPICS) * PARTITIONS, f"{partitions} partitions have a directory each", partitions)

    # -- where is customer 42? -------------------------------------------------------------------------------------------

    def _find(self) -> None:
        say = self._teller
        say.chapter("Where is customer 42?")
        say.say(
            "Spark reads the segment files themselves, while the broker goes on using them: one task for each segment, no "
            "consumer. Of all keys, values and headers:"
        )
        say.call(" ".join(find_command(Path("DATA"), f"'{PATTERN}'")))
        began = time.monotonic()
        self._found = find(self._data, PATTERN)
        took_s = time.monotonic() - began
        rows = [[f"{one.topic}-{one.partition}", str(one.offset), one.status, one.places] for one in self._found]
        say.table(("partition", "offset", "is", "found in"), rows)
        say.say(f"That took {took_s:.0f} s, most of which is the start of Spark.")
        records = {(f"{one.topic}-{one.partition}", one.offset) for one in self._found}
        expected = {(one.partition, one.offset) for one in search_records(self._data, (EMAIL,))}
        say.claim(
            bool(records) and records == expected,
            f"aiokafka's own reader finds {EMAIL} in the same {len(records)} records of the files",
            records ^ expected,
        )
        partitions = Counter(topic for topic, _ in {(one.topic, one.partition) for one in self._found})
        say.claim(
            dict(partitions) == {name: 2 if name == CONSENTS else 1 for name in TOPICS},
            f"they lie in {partitions.total()} of 36 partitions, in {CONSENTS} in two: aiokafka and librdkafka hash keys "
            "differently, so that either partitioner alone names only one of the two",
            dict(partitions),
        )
        superseded = sum(one.status == "superseded" for one in self._found)
        say.claim(superseded > 0, f"{superseded} of the records are older versions, which compaction has not come to")

    # -- erased twice ----------------------------------------------------------------------------------------------------

    def _erase_on_spark(self, broker: BrokerProcess) -> None:
        say = self._teller
        say.chapter("Erase, and let Spark do the cleaning")
        say.call(f'admin.erase("{FORGOTTEN}", {list(TOPICS)}, reason="{REASON}", engine="spark")')
        admin = Admin(broker.bootstrap, timeout=commands.SPARK_TIMEOUT_S)
        folder = Folder(self.directory / "certificates", admin)
        folder.pin()
        began = time.monotonic()
        found = admin.erase(FORGOTTEN, list(TOPICS), reason=REASON, reference=REFERENCE, engine="spark")
        took_s = time.monotonic() - began
        certificate = self._certificates[SPARK] = found["certificate"]
        folder.keep(SPARK, certificate)
        runners = {runner for one in certificate["done"] for runner in one["runners"]}
        say.say(
            f"In {took_s:.0f} s: a tombstone written to each of {len(certificate['done'])} partitions, each cleaned by a "
            "job of its own in one session of Spark; its outputs verified and swapped in; everything scanned, and signed."
        )
        say.claim(runners == {"spark"}, "the certificate names the runner of every partition: spark", runners)
        say.claim(found["state"] == "values-gone", "and says: values-gone", found["state"])
        left = [*search_bytes(self._data, PERSONAL), *search_records(self._data, PERSONAL)]
        say.claim(not left, f"no file of the broker holds {' or '.join(PERSONAL)}", left)

    def _erase_locally(self, broker: BrokerProcess) -> None:
        say = self._teller
        say.chapter("The same without Spark, on a copy")
        say.say("A second broker has a copy of the directory as it was, and its clock stands still at the same moment.")
        say.call(f'admin.erase("{FORGOTTEN}", {list(TOPICS)}, reason="{REASON}")')
        found = Admin(broker.bootstrap).erase(FORGOTTEN, list(TOPICS), reason=REASON, reference=REFERENCE)
        certificate = self._certificates[LOCAL] = found["certificate"]
        runners = {runner for one in certificate["done"] for runner in one["runners"]}
        say.claim(bool(runners) and "spark" not in runners, f"there {' and '.join(sorted(runners))} did it", runners)

    def _compare(self) -> None:
        say = self._teller
        say.chapter("Is it the same?")
        spark, local = self._certificates[SPARK], self._certificates[LOCAL]
        say.claim(spark["state"] == local["state"], f"both certificates say {spark['state']}", local["state"])
        say.claim(
            spark["claims"] == local["claims"],
            f"for the same {len(spark['claims'])} partitions and offsets",
            local["claims"],
        )
        before, after = ({one["segments"][f"{when}_root"] for one in (spark, local)} for when in ("before", "after"))
        say.claim(len(before) == 1, "of the same segments", before)
        say.claim(
            len(after) == 1,
            f"and the SHA-256 of the {len(spark['segments']['after'])} segments that took their place are the same: Spark has "
            f"written what the local engine writes, byte for byte (Merkle root {min(after)[:16]}...)",
            after,
        )

    def _verify(self, broker: BrokerProcess) -> None:
        say = self._teller
        say.chapter("Is it true?")
        folder = self.directory / "certificates"
        pinned = ("--public-key", str(folder / "public.pem"), "--bootstrap-server", broker.bootstrap)
        say.call("diamant verify spark.json --public-key public.pem")
        found = verify(folder / f"{SPARK}.json", *pinned)
        say.claim(found.code == proof.VALID, f"{found.first_line}", found.said)
        say.say("The broker's clock stood still, so the certificate says of itself that it is not evidence.")
