"""Kafka's command line tools against a broker: `python kafka_tools.py HOST:PORT [STEP ...]`; see steps.py.

KAFKA_HOME is the directory of a Kafka distribution. The tools are started by their Java classes; the names of their scripts stand
beside them.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Sequence

import steps

SILENCE_MS = str(1000 * steps.TIMEOUT_S)
"""After so long without a record a console consumer gives up."""
TOOLS = {
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "kafka-configs": "org.apache.kafka.tools.ConfigCommand",
    "kafka-console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "kafka-consumer-perf-test": "org.apache.kafka.tools.ConsumerPerformance",
    "kafka-verifiable-producer": "org.apache.kafka.tools.VerifiableProducer",
    "kafka-verifiable-consumer": "org.apache.kafka.tools.VerifiableConsumer",
    "kafka-get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-groups": "org.apache.kafka.tools.GroupsCommand",
    "kafka-transactions": "org.apache.kafka.tools.TransactionsCommand",
    "kafka-delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "kafka-features": "org.apache.kafka.tools.FeatureCommand",
    "kafka-log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "kafka-metadata-quorum": "org.apache.kafka.tools.MetadataQuorumCommand",
    "kafka-broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "kafka-cluster": "org.apache.kafka.tools.ClusterTool",
}
OLDER_CLASSES = {"org.apache.kafka.tools.ConfigCommand": "kafka.admin.ConfigCommand"}
"""Names of classes until Kafka 4.3."""


def class_of(name: str) -> str:
    """Return the class of a tool in the distribution."""
    found = re.search(r"kafka-clients-(\d+)\.(\d+)", " ".join(os.listdir(f"{os.environ['KAFKA_HOME']}/libs")))
    assert found is not None
    is_older = (int(found[1]), int(found[2])) < (4, 4)
    return OLDER_CLASSES.get(TOOLS[name], TOOLS[name]) if is_older else TOOLS[name]


def tool(name: str, *arguments: str, text: str = "") -> str:
    """Run a tool to its end and return what it printed, warnings and all."""
    if steps.CA:
        # After the address: some tools take it before their own commands only.
        after = arguments.index("--bootstrap-server") + 2
        with tempfile.NamedTemporaryFile("w", suffix=".properties") as file:
            file.write(f"security.protocol=SSL\nssl.truststore.type=PEM\nssl.truststore.location={steps.CA}\n")
            file.flush()
            return run(name, [*arguments[:after], "--command-config", file.name, *arguments[after:]], text)
    return run(name, arguments, text)


def run(name: str, arguments: Sequence[str], text: str) -> str:
    class_path = f"{os.environ['KAFKA_HOME']}/libs/*"
    command = ["java", "-XX:TieredStopAtLevel=1", "-cp", class_path, class_of(name), *arguments]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=4 * steps.TIMEOUT_S, check=False)
    assert done.returncode == 0, f"{name} {arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def new_topic(bootstrap: str, name: str) -> str:
    topic = steps.unique(name)
    options = ["--create", "--topic", topic, "--partitions", str(steps.PARTITIONS)]
    tool("kafka-topics", "--bootstrap-server", bootstrap, *options)
    return topic


def lines(count: int = steps.RECORDS) -> list[str]:
    return [f"key-{number}:value-{number}" for number in range(count)]


def send(bootstrap: str, topic: str, *options: str) -> None:
    keyed = ["--reader-property", "parse.key=true", "--reader-property", "key.separator=:"]
    tool(
        "kafka-console-producer",
        *("--bootstrap-server", bootstrap, "--topic", topic, *keyed, *options),
        text="\n".join(lines()),
    )


def read(bootstrap: str, topic: str, count: int, *options: str) -> list[str]:
    printed = tool(
        "kafka-console-consumer",
        *("--bootstrap-server", bootstrap, "--topic", topic, "--max-messages", str(count), "--timeout-ms", SILENCE_MS),
        *("--formatter-property", "print.key=true", "--formatter-property", "key.separator=:", *options),
    )
    return sorted(line for line in printed.splitlines() if line.startswith("key-"))


def produce(bootstrap: str) -> None:
    topic = new_topic(bootstrap, "produce")
    send(bootstrap, topic, "--compression-codec", "zstd")
    sent = tool(
        "kafka-producer-perf-test",
        *("--topic", topic, "--num-records", "1000", "--record-size", "100", "--throughput", "-1"),
        *("--bootstrap-server", bootstrap),
    )
    assert "1000 records sent" in sent
    acknowledged = tool(
        "kafka-verifiable-producer", "--bootstrap-server", bootstrap, "--topic", topic, "--max-messages", "100"
    )
    assert acknowledged.count('"name":"producer_send_success"') == 100
    ends = tool("kafka-get-offsets", "--bootstrap-server", bootstrap, "--topic", topic)
    assert sum(int(line.rsplit(":", 1)[1]) for line in ends.splitlines() if line.startswith(topic)) == 1140


def consume(bootstrap: str) -> None:
    topic = new_topic(bootstrap, "consume")
    send(bootstrap, topic)
    assert read(bootstrap, topic, steps.RECORDS, "--from-beginning") == sorted(lines())
    at_zero = read(bootstrap, topic, 1, "--partition", "0", "--offset", "0")
    assert len(at_zero) == 1


def in_a_group(bootstrap: str, protocol: str) -> None:
    topic, group = new_topic(bootstrap, "group"), steps.unique("group")
    send(bootstrap, topic)
    options = ["--group", group, "--consumer-property", f"group.protocol={protocol}"]
    assert read(bootstrap, topic, steps.RECORDS, "--from-beginning", *options) == sorted(lines())
    described = tool("kafka-consumer-groups", "--bootstrap-server", bootstrap, "--describe", "--group", group)
    rows = [line.split() for line in described.splitlines() if line.startswith(group)]
    assert [row[5] for row in rows] == ["0"] * steps.PARTITIONS, f"no lag: {described}"
    listed = tool("kafka-groups", "--bootstrap-server", bootstrap, "--list")
    kind = {"classic": "Classic", "consumer": "Consumer"}[protocol]
    assert re.search(rf"^{group} +{kind} ", listed, re.MULTILINE), listed


def classic(bootstrap: str) -> None:
    in_a_group(bootstrap, "classic")
    topic, group = new_topic(bootstrap, "verify"), steps.unique("verify")
    tool("kafka-verifiable-producer", "--bootstrap-server", bootstrap, "--topic", topic, "--max-messages", "100")
    options = ["--group-id", group, "--max-messages", "100", "--reset-policy", "earliest"]
    verified = tool("kafka-verifiable-consumer", "--bootstrap-server", bootstrap, "--topic", topic, *options)
    assert '"name":"offsets_committed"' in verified
    counted = tool(
        "kafka-consumer-perf-test",
        *("--bootstrap-server", bootstrap, "--topic", topic, "--num-records", "100", "--timeout", SILENCE_MS),
    )
    assert re.search(r", 100, ", counted), counted


def cooperative(bootstrap: str) -> None:
    raise steps.Unsupported("the tools start one member; tried with the Java client")


def static(bootstrap: str) -> None:
    raise steps.Unsupported("the tools start one member; tried with the Java client")


def consumer_protocol(bootstrap: str) -> None:
    in_a_group(bootstrap, "consumer")


def transactions(bootstrap: str) -> None:
    topic, transactional_id = new_topic(bootstrap, "txn"), steps.unique("txn")
    tool(
        "kafka-producer-perf-test",
        *("--topic", topic, "--num-records", "500", "--record-size", "100", "--throughput", "-1"),
        *("--bootstrap-server", bootstrap, "--transactional-id", transactional_id, "--transaction-duration-ms", "50"),
    )
    described = tool(
        "kafka-transactions", "--bootstrap-server", bootstrap, "describe", "--transactional-id", transactional_id
    )
    assert "CompleteCommit" in described, described
    listed = tool("kafka-transactions", "--bootstrap-server", bootstrap, "list")
    assert transactional_id in listed
    producers = tool(
        "kafka-transactions",
        "--bootstrap-server",
        bootstrap,
        "describe-producers",
        "--topic",
        topic,
        "--partition",
        "0",
    )
    assert "ProducerId" in producers
    committed = tool(
        "kafka-console-consumer",
        *("--bootstrap-server", bootstrap, "--topic", topic, "--from-beginning", "--max-messages", "500"),
        *("--isolation-level", "read_committed", "--timeout-ms", SILENCE_MS),
    )
    assert "Processed a total of 500 messages" in committed


def admin(bootstrap: str) -> None:
    at = ["--bootstrap-server", bootstrap]
    topic = new_topic(bootstrap, "admin")
    tool("kafka-topics", *at, "--alter", "--topic", topic, "--partitions", "6")
    assert "PartitionCount: 6" in tool("kafka-topics", *at, "--describe", "--topic", topic)
    tool("kafka-configs", *at, "--alter", "--topic", topic, "--add-config", "retention.ms=123456789")
    assert "retention.ms=123456789" in tool("kafka-configs", *at, "--describe", "--topic", topic)
    assert "log.retention.hours" in tool(
        "kafka-configs", *at, "--describe", "--all", "--entity-type", "brokers", "--entity-name", broker_id(bootstrap)
    )
    group = steps.unique("admin")
    send(bootstrap, topic)
    read(bootstrap, topic, steps.RECORDS, "--from-beginning", "--group", group)
    reset = ["--reset-offsets", "--to-earliest", "--execute", "--group", group, "--topic", topic]
    tool("kafka-consumer-groups", *at, *reset)
    assert len(read(bootstrap, topic, steps.RECORDS, "--group", group)) == steps.RECORDS
    tool("kafka-consumer-groups", *at, "--delete-offsets", "--group", group, "--topic", topic)
    tool("kafka-consumer-groups", *at, "--delete", "--group", group)
    assert group not in tool("kafka-consumer-groups", *at, "--list")
    assert "metadata.version" in tool("kafka-features", *at, "describe")
    assert topic in tool("kafka-log-dirs", *at, "--describe", "--topic-list", topic)
    assert "LeaderId" in tool("kafka-metadata-quorum", *at, "describe", "--status")
    assert "Produce(0)" in tool("kafka-broker-api-versions", *at)
    assert "Cluster ID" in tool("kafka-cluster", "cluster-id", *at)
    tool("kafka-topics", *at, "--delete", "--topic", topic)
    assert topic not in tool("kafka-topics", *at, "--list").splitlines()


def broker_id(bootstrap: str) -> str:
    """Return the id of the only node."""
    versions = tool("kafka-broker-api-versions", "--bootstrap-server", bootstrap)
    found = re.search(r"\(id: (\d+) rack", versions)
    assert found, versions
    return found[1]


if __name__ == "__main__":
    steps.run(
        globals(),
        "of KAFKA_HOME",
    )
