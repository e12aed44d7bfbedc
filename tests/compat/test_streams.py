"""Kafka Streams against a broker: `classic` groups, and the error for those of KIP-1071.

Wants `java`, and KAFKA_HOME the directory of a Kafka distribution.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from diamant.broker.broker import BlockingBroker
from tests.compat.test_compat import CLIENTS, TIMEOUT_S, Missing, found, kafka_jars


def run(broker: BlockingBroker, protocol: str, place: Path) -> list[str]:
    """What the application says, line by line, without its log."""
    try:
        if not list(Path(kafka_jars()).parent.glob("kafka-streams-*.jar")):
            raise Missing("KAFKA_HOME has no libs/kafka-streams-*.jar")
        command = [found("java"), "-XX:TieredStopAtLevel=1", "-cp", kafka_jars(), str(CLIENTS / "JavaStreams.java")]
    except Missing as reason:
        pytest.skip(str(reason))
    done = subprocess.run(
        [*command, broker.bootstrap_servers, protocol, str(place)],
        capture_output=True, text=True, timeout=TIMEOUT_S, check=False, cwd=place,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout.splitlines() if line.startswith(("counted ", "failed "))]


@pytest.mark.long
def test_a_streams_application_counts_in_a_classic_group(fresh_broker: BlockingBroker, tmp_path: Path) -> None:
    """It reads, keeps a store with a changelog, and writes."""
    assert run(fresh_broker, "classic", tmp_path) == ["counted a 1", "counted b 1", "counted a 2"]


@pytest.mark.long
def test_a_streams_application_with_the_protocol_of_kip_1071_fails_at_once(
    fresh_broker: BlockingBroker, tmp_path: Path
) -> None:
    """The error is Kafka's own for a cluster without Streams groups."""
    (line,) = run(fresh_broker, "streams", tmp_path)
    assert "UnsupportedVersionException: The cluster does not support the STREAMS group protocol" in line
