"""docker/spark.Dockerfile and docker/compose.yaml without a container engine. `make image-check` has one.

The commands of the services are run as processes of this environment: a master, one worker and the broker. What differs from
containers: names of services become 127.0.0.1, ports are free ones, volumes are directories that all of them see, and Java is
this machine's.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from diamant.cleaner.spark.environment.java import INSTALL_COMMAND
from tests.cleaner.spark.cluster import JAVA_OPTIONS
from tests.cleaner.spark.conftest import java_home
from tests.documentation.docker_image import ROOT, Image, check_sources, image_of, last_stage
from tests.ports import ReservedPort

DOCKERFILE = ROOT / "docker" / "spark.Dockerfile"
COMPOSE = ROOT / "docker" / "compose.yaml"
TOPIC = "users"
RECORDS, KEYS = 30_000, 1_000
TIMEOUT_S = 300
LOOK_AGAIN_S = 0.05


def services() -> dict[str, dict[str, Any]]:
    """Return the services of compose.yaml by their names."""
    found: dict[str, dict[str, Any]] = yaml.safe_load(COMPOSE.read_text())["services"]
    return found


def options(command: list[str]) -> dict[str, str]:
    """What --set gives."""
    pairs = [command[index + 1] for index, word in enumerate(command) if word == "--set"]
    return dict(pair.split("=", 1) for pair in pairs)


def test_the_image_has_the_java_that_is_recommended() -> None:
    """What apt-get installs is what a message about a missing Java names."""
    assert f"{INSTALL_COMMAND.split()[-1]} " in DOCKERFILE.read_text()


def test_the_services_fit_each_other() -> None:
    """All run the image, which the broker's alone builds, and has started before the others; the broker's cleaner has the
    master, and a staging location that it shares with the workers; these see the data directory under the broker's path and
    cannot write to it, and remove what ended applications have left; what is published is for this machine only.
    """
    found = services()
    steps = last_stage(DOCKERFILE)
    assert set(found) == {"broker", "spark-master", "spark-worker"}
    build = found["broker"]["build"]
    assert (COMPOSE.parent / build["context"] / build["dockerfile"]).resolve() == DOCKERFILE
    for name, service in found.items():
        assert service["image"] == "diamant-spark"
        # Two that build the same tag are refused ("image already exists"); the tag is in no registry.
        if name != "broker":
            assert "build" not in service
            assert service["pull_policy"] == "never"
            assert service["depends_on"]["broker"] == {"condition": "service_started"}
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
    broker, master, worker = found["broker"], found["spark-master"], found["spark-worker"]
    settings = options(broker["command"])
    place = master["command"]
    address = f"spark://{place[place.index('--host') + 1]}:{place[place.index('--port') + 1]}"
    assert address == "spark://spark-master:7077" == settings["diamant.cleaner.spark.master"] == worker["command"][-1]
    assert settings["diamant.cleaner.spark.conf.spark.driver.host"] == "broker"
    assert settings["diamant.cleaner.spark.staging"] == "file:///staging"
    assert set(broker["volumes"]) == {"data:/data", "keys:/keys", "staging:/staging"}
    assert set(worker["volumes"]) == {"data:/data:ro", "staging:/staging"}
    assert settings["diamant.certificate.key.file"] == "/keys/certificate.key"
    assert json.loads(steps["VOLUME"]) == ["/data", "/staging"]
    assert broker["command"][broker["command"].index("--data") + 1] == "/data"
    worker_memory = worker["command"][worker["command"].index("--memory") + 1]
    assert settings["diamant.cleaner.spark.conf.spark.executor.memory"] == worker_memory
    assert "-Dspark.worker.cleanup.enabled=true" in worker["environment"]["SPARK_WORKER_OPTS"].split()
    assert set(steps["EXPOSE"].split()) == {"9092", "7077"}


def test_all_sources_are_committed() -> None:
    """A clone of the repository has all that the build takes from it."""
    check_sources(DOCKERFILE)


class Services:
    """The services as processes of an image; what they print is in files of the image's root."""

    def __init__(self, image: Image, java: str, ports: Mapping[str, ReservedPort]) -> None:
        self._image = image
        # A container has an address to itself.
        self._variables = {"JAVA_HOME": java, "SPARK_LOCAL_IP": "127.0.0.1", "JDK_JAVA_OPTIONS": JAVA_OPTIONS}
        self._ports = {port: str(given.number) for port, given in ports.items()}
        self._processes: dict[str, subprocess.Popen[str]] = {}
        # The name that compose.yaml advertises: librdkafka gives up requests to an address that turns out to be another's.
        self.bootstrap = f"localhost:{ports['9092'].number}"

    def words(self, command: list[str]) -> list[str]:
        """Return a command as it is run here."""
        return [self._word(word) for word in command]

    def _word(self, word: str) -> str:
        word = self._image.in_place(word)
        word = re.sub(r"\b(9092|7077|8080|8081)\b", lambda port: self._ports[port[0]], word)
        return re.sub(r"(?<![\w.-])(?:spark-master|broker|0\.0\.0\.0)(?![\w.-])", "127.0.0.1", word)

    def log(self, name: str) -> Path:
        """What a service has printed."""
        return self._image.root / f"{name}.log"

    @contextmanager
    def running(self, name: str, *more: str) -> Iterator[None]:
        """Run a service's command, with further arguments, until the block ends."""
        service = services()[name]
        command = self.words(service["command"])
        variables = {**self._variables, **service.get("environment", {})}
        with self.log(name).open("w") as log:
            process = self._image.start([*command, *more], variables, stdout=log, stderr=log)
        self._processes[name] = process
        try:
            yield
        finally:
            process.terminate()
            code = process.wait(TIMEOUT_S)
        # 143: a JVM that was told to stop.
        assert code in (0, 143), self.log(name).read_text()

    def is_healthy(self, name: str) -> bool:
        """Run a service's health check."""
        kind, *words = services()[name]["healthcheck"]["test"]
        assert kind == "CMD"
        asked = self._image.start(
            self.words(words), {"DIAMANT_BOOTSTRAP_SERVERS": self.bootstrap}, stderr=subprocess.DEVNULL
        )
        return asked.wait(TIMEOUT_S) == 0

    def wait_until(self, name: str, condition: Callable[[], bool]) -> None:
        """Look again and again until `condition` holds of a service, which must not end before."""
        end_s = time.monotonic() + TIMEOUT_S
        while not condition():
            assert self._processes[name].poll() is None, self.log(name).read_text()
            assert time.monotonic() < end_s, self.log(name).read_text()
            time.sleep(LOOK_AGAIN_S)

    def run_in(self, name: str, *words: str) -> str:
        """What a command prints that is run in a service's container."""
        with self._image.start(list(words), self._variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            out, err = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 0, f"{err}\n{self.log(name).read_text()}"
        return out


@pytest.mark.slow
def test_the_services_work() -> None:
    """Started with compose's commands, the broker has a topic compacted by the cluster on demand: the report names Spark, each
    key's last value is there and nothing else, and nothing is left at the staging location.
    """
    java = java_home(os.environ)
    with image_of(DOCKERFILE) as image, ExitStack() as stack:
        ports = {port: stack.enter_context(ReservedPort()) for port in ("9092", "7077", "8080", "8081")}
        check_services(Services(image, java, ports), image.places)


def check_services(run: Services, places: Mapping[str, Path]) -> None:
    """See above."""
    # A container has the port for HTTP to itself; this machine may have another broker.
    with run.running("broker", "--set", "diamant.http.listen=127.0.0.1:0"), run.running("spark-master"):
        for name in ("broker", "spark-master"):
            run.wait_until(name, lambda name=name: run.is_healthy(name))  # type: ignore[misc]
        with run.running("spark-worker"):
            latest = write(run.bootstrap)
            run.wait_until(
                "spark-worker", lambda: "Successfully registered with master" in run.log("spark-worker").read_text()
            )
            asked = ("--bootstrap-server", run.bootstrap, "--engine", "spark", "--json")
            report = json.loads(run.run_in("broker", "diamant", "compact", TOPIC, *asked))
            (partition,) = report["partitions"]
            assert partition["runners"] == ["spark"], run.log("broker").read_text()
            assert report["removed"] == {"superseded": RECORDS - KEYS}
            assert read(run.bootstrap) == latest
        assert list(places["/staging"].iterdir()) == []
        assert not re.search("(WARNING|ERROR) diamant", run.log("broker").read_text()), run.log("broker").read_text()


def write(servers: str) -> dict[bytes, bytes]:
    """Fill a compacted topic; each key's last value."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # its types forget it

    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(TOPIC, 1, 1, config={"cleanup.policy": "compact"})])[TOPIC].result(TIMEOUT_S)
    producer = Producer({"bootstrap.servers": servers, "queue.buffering.max.messages": 0, "compression.type": "lz4"})
    latest = {}
    for number in range(RECORDS):
        key, value = b"user-%d" % (number % KEYS), b"value-%d" % number
        producer.produce(TOPIC, value, key)
        latest[key] = value
    assert producer.flush(TIMEOUT_S) == 0
    return latest


def read(servers: str) -> dict[bytes, bytes]:
    """Read the topic; fails if a key comes twice."""
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    settings = {"group.id": "g", "enable.auto.commit": False, "enable.partition.eof": True}
    consumer = Consumer({"bootstrap.servers": servers, **settings})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    found: dict[bytes, bytes] = {}
    while True:
        message = consumer.poll(TIMEOUT_S)
        assert message is not None
        error = message.error()
        if error is not None:
            assert error.code() == KafkaError._PARTITION_EOF, error
            break
        key, value = message.key(), message.value()
        assert key is not None
        assert value is not None
        assert key not in found
        found[key] = value
    consumer.close()
    return found
