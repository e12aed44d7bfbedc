"""The client of any Kafka cluster: what it waits for, and until when."""

from __future__ import annotations

from pathlib import Path

import pytest

from diamant.broker.client.kafka_client import LATEST, KafkaClient, KafkaRefusal
from tests.broker.clusters.any_cluster import OLD_MS, diamant


class Hasty(KafkaClient):
    """A client whose time is up at the first pause."""

    def pause(self, deadline: float, what: str, code: int) -> None:
        """Raise as after the deadline."""
        super().pause(0.0, what, code)


def test_offsets_of_many_topics_are_returned_and_missing_partitions_refused(tmp_path: Path) -> None:
    """A partition that its topic does not have, such as after the topic was created again, is not asked for without an end."""
    with diamant(tmp_path) as cluster, Hasty(cluster.bootstrap, timeout_s=30.0) as client:
        for name, records in (("a", 1), ("b", 2)):
            cluster.create(name, partitions=2)
            cluster.produce(name, [(b"k", b"v")] * records, timestamp_ms=OLD_MS, partition=1)
        places = [("a", 0), ("a", 1), ("b", 1)]
        assert client.offsets_of(places, LATEST) == {("a", 0): 0, ("a", 1): 1, ("b", 1): 2}
        with pytest.raises(KafkaRefusal, match="a-7"):
            client.offsets("a", [0, 7], LATEST)
        assert client.offsets_of([], LATEST) == {}
