"""Apache Kafka in processes of its own, from the jars of a distribution: KAFKA_HOME names its directory, and `java` is on PATH.

Node 1 is broker and controller and is never stopped; others are brokers only.
"""

from __future__ import annotations

import base64
import os
import shutil
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

import pytest

from tests.broker.clusters.any_cluster import PLAIN_LOGINS, SECURED, AnyCluster
from tests.ports import ReservedPort

START_S = 120.0
ELECT_LEADERS, ALTER_PARTITION_REASSIGNMENTS = 43, 45
PREFERRED = 0
"""The election that makes the first replica the leader."""
JVM = ("-Xmx384m", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true")
LOGGING = (
    "<Configuration><Appenders><Console name='C' target='SYSTEM_ERR'/></Appenders><Loggers><Root level='WARN'>"
    "<AppenderRef ref='C'/></Root></Loggers></Configuration>"
)


def class_path() -> str:
    """Return the class path of KAFKA_HOME; the test is skipped without it, or without Java."""
    home = os.environ.get("KAFKA_HOME")
    if not home or not list(Path(home, "libs").glob("kafka-clients-*.jar")):
        pytest.skip("KAFKA_HOME names no directory with libs/kafka-clients-*.jar")
    if shutil.which("java") is None:
        pytest.skip("java is not on PATH")
    return f"{home}/libs/*"


class RealKafka(AnyCluster):
    """A cluster of one or more brokers. `close` ends those that run, also after a start that failed."""

    def __init__(self, path: Path, brokers: int, secured: Sequence[str]) -> None:
        self._path = path
        self._class_path = class_path()
        self._logging = path / "log4j2.xml"
        self._logging.write_text(LOGGING)
        self._cluster_id = base64.urlsafe_b64encode(b"\0" + uuid.uuid4().bytes[1:]).decode().rstrip("=")
        self._ports = [ReservedPort() for _ in range(brokers + 1)]
        self._secured = {name: ReservedPort() for name in secured}
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        addresses = {name: port.address for name, port in self._secured.items()}
        super().__init__(",".join(port.address for port in self._ports[:-1]), addresses)

    def start_all(self, settings: Mapping[str, str]) -> None:
        """Start the brokers for the first time."""
        nodes = range(1, len(self._ports))
        for node in nodes:
            self._write_properties(node, settings)
            self._format(node)
        for node in nodes:
            self.start(node)
        for node in nodes:
            self.wait_up(node)
        self.wait_registered(len(nodes))

    def wait_registered(self, brokers: int) -> None:
        """Wait until as many brokers are known to the cluster."""
        deadline = time.monotonic() + START_S
        while len(self.client.broker_ids()) != brokers:
            assert time.monotonic() < deadline, "not all brokers have registered"
            time.sleep(0.1)

    def wait_in_sync(self, topic: str, replicas: int) -> None:
        """Wait until all partitions of a topic have as many replicas in sync."""
        deadline = time.monotonic() + START_S
        while any(len(one.in_sync) != replicas for one in self.client.topic(topic).partitions):
            assert time.monotonic() < deadline, "not all replicas are in sync"
            time.sleep(0.1)

    def lead(self, topic: str, partition: int, broker: int) -> None:
        """Make a broker the leader of a partition, without a stop: the first of its replicas, and elected."""
        (led,) = [one for one in self.client.topic(topic).partitions if one.number == partition]
        replicas = [broker, *(one for one in led.replicas if one != broker)]
        fields = {
            "timeout_ms": 30_000,
            "allow_replication_factor_change": False,
            "topics": [{"name": topic, "partitions": [{"partition_index": partition, "replicas": replicas}]}],
        }
        answer = self.client.controller().ask(ALTER_PARTITION_REASSIGNMENTS, fields)
        assert not answer["responses"][0]["partitions"][0]["error_code"], answer
        self.wait_led(topic, partition, broker)

    def wait_led(self, topic: str, partition: int, broker: int) -> None:
        """Ask for the election of the first replica until this broker is the leader."""
        wanted = {
            "election_type": PREFERRED,
            "topic_partitions": [{"topic": topic, "partitions": [partition]}],
            "timeout_ms": 30_000,
        }
        deadline = time.monotonic() + START_S
        while self.client.led(topic, [partition]) != {broker: [partition]}:
            assert time.monotonic() < deadline, f"broker {broker} does not become the leader of {topic}-{partition}"
            self.client.controller().ask(ELECT_LEADERS, wanted)
            time.sleep(0.1)

    def data(self, node: int) -> Path:
        """Return the log directory of a broker."""
        return self._path / f"data{node}"

    def start(self, node: int) -> None:
        """Start a broker."""
        with (self._path / f"log{node}").open("ab") as log:
            self._processes[node] = subprocess.Popen(
                [*self._java(), "kafka.Kafka", str(self._path / f"{node}.properties")], stdout=log, stderr=log
            )

    def wait_up(self, node: int) -> None:
        """Wait until a broker listens."""
        deadline = time.monotonic() + START_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self._ports[node - 1].number), 1).close()
                return
            except OSError:
                assert self._processes[node].poll() is None, (self._path / f"log{node}").read_text()[-4000:]
                assert time.monotonic() < deadline, "the broker does not listen"
                time.sleep(0.1)

    def stop(self, node: int, how: int = signal.SIGKILL) -> None:
        """End a broker."""
        process = self._processes.pop(node)
        process.send_signal(how)
        process.wait()

    def close(self) -> None:
        """End all brokers."""
        self.client.close()
        for node in list(self._processes):
            self.stop(node)
        for port in (*self._ports, *self._secured.values()):
            port.close()

    def _java(self) -> list[str]:
        return ["java", *JVM, f"-Dlog4j2.configurationFile={self._logging}", "-cp", self._class_path]

    def _write_properties(self, node: int, settings: Mapping[str, str]) -> None:
        listener, controller = self._ports[node - 1].number, self._ports[-1].number
        brokers = len(self._ports) - 1
        listeners = f"PLAINTEXT://127.0.0.1:{listener}"
        if node == 1:
            listeners += "".join(f",{name}://{port.address}" for name, port in self._secured.items())
        properties = {
            "process.roles": "broker,controller" if node == 1 else "broker",
            "node.id": str(node),
            "listeners": listeners + (f",CONTROLLER://127.0.0.1:{controller}" if node == 1 else ""),
            "advertised.listeners": listeners,
            "listener.security.protocol.map": ",".join(
                f"{name}:{'PLAINTEXT' if name == 'CONTROLLER' else name}"
                for name in ("PLAINTEXT", "CONTROLLER", *SECURED)
            ),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
            **PLAIN_LOGINS,
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "log.dirs": str(self.data(node)),
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "1",
            "default.replication.factor": str(brokers),
            "group.initial.rebalance.delay.ms": "0",
            "broker.session.timeout.ms": "3000",
            "broker.heartbeat.interval.ms": "500",
            "replica.lag.time.max.ms": "5000",
            "log.cleaner.backoff.ms": "1000",
            **settings,
        }
        lines = "".join(
            f"{name}={value}\n".replace("\n", "\\n", value.count("\n")) for name, value in properties.items()
        )
        (self._path / f"{node}.properties").write_text(lines)

    def _format(self, node: int) -> None:
        words = [
            "kafka.tools.StorageTool",
            "format",
            "-t",
            self._cluster_id,
            "-c",
            str(self._path / f"{node}.properties"),
        ]
        done = subprocess.run([*self._java(), *words], capture_output=True, text=True, check=False)
        assert not done.returncode, done.stdout + done.stderr


@contextmanager
def real_kafka(
    path: Path,
    secured: Sequence[str] = SECURED[:1],
    properties: Mapping[str, str] = MappingProxyType({}),
    *,
    brokers: int = 1,
    **settings: str,
) -> Iterator[RealKafka]:
    """A cluster of Kafka, with these secured listeners; settings have underscores for dots, properties their own names."""
    named = {name.replace("_", "."): value for name, value in settings.items()}
    cluster = RealKafka(path, brokers, secured)
    try:
        cluster.start_all({**named, **properties})
        yield cluster
    finally:
        cluster.close()
