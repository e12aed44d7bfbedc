"""A compaction beside an open transaction: which one it is, since when and until when, in the first line."""

from __future__ import annotations

import re

from click.testing import CliRunner
from confluent_kafka import Producer

import diamant
from diamant.broker.broker import Broker
from diamant.broker.cli import main


def test_the_transaction_that_holds_records_back_is_named_first() -> None:
    """The transaction is named in the report, in the command's first line and in the explanation, and no longer once it is
    over.
    """
    with Broker(listen="127.0.0.1:0", diamant_http_listen="127.0.0.1:0") as broker:
        broker.create_topic("ledger", 1, compact=True)
        for number in range(6):
            broker.produce("ledger", f"v{number}", key="k")
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "import-7"})
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce("ledger", "open", key="k")
        producer.flush(30)

        report = diamant.Admin(broker.bootstrap_servers).compact("ledger")
        held = report["partitions"][0]["held_back"]
        assert (held["transactional_id"], held["transaction_first_offset"]) == ("import-7", 6)
        assert held["aborts_ms"] == held["since_ms"] + 60_001
        time = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"
        sentence = (
            rf"transaction 'import-7' of producer \d+, open since {time}, offset 6, keeps offsets 0 to 6 of ledger-0 "
            rf"\(\d+ bytes\) from being cleaned; it is aborted at {time} at the latest; to abort it: "
            r"kafka-transactions.sh --bootstrap-server HOST:PORT forceTerminateTransaction --transactionalId import-7"
        )
        assert re.fullmatch(sentence, report["held_text"])
        shown = CliRunner().invoke(main, ["compact", "ledger", "-b", broker.bootstrap_servers])
        assert re.match(rf"ledger: partly held back after [\d.]+ ms: {sentence}", " ".join(shown.stdout.split()))
        [partition] = broker.explain("ledger").partitions
        gate = rf"transaction 'import-7' of producer \d+, open since {time}, offset 6; it is aborted at {time} at the latest"
        assert any(re.fullmatch(gate, one.text) for one in partition.gates)
        assert partition.change is not None
        assert "or abort it: kafka-transactions.sh" in partition.change.text

        producer.commit_transaction(30)
        report = diamant.Admin(broker.bootstrap_servers).compact("ledger")
        assert (report["is_clean"], report["held_text"], report["removed"]) == (True, None, {"superseded": 6})
