"""docker/Dockerfile: what it declares, and its commands, without a container engine. `make image-check` has one.

The port is a free one on 127.0.0.1.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys

import pytest

from release.images import NEEDED, missing
from tests.documentation.docker_image import ROOT, Image, Step, check_sources, image_of, last_stage, read_stages
from tests.ports import ReservedPort

DOCKERFILE = ROOT / "docker" / "Dockerfile"
IMAGE_PORT = "9092"
DATA = "/data"
KEYS = "/keys"
KEY_SETTING = f"diamant.certificate.key.file={KEYS}/certificate.key"
NOTHING_MATCHED = 4
"""Exit code of an erasure that found nothing. It makes the signing key all the same."""
TIMEOUT_S = 300


def test_declarations_of_the_image_are_those_of_the_start() -> None:
    """User, volume, port, stop signal and health check are there, and are those that the broker is started with."""
    steps = last_stage(DOCKERFILE)
    assert steps["USER"] == "10001:10001"
    assert (steps["VOLUME"], steps["EXPOSE"], steps["STOPSIGNAL"]) == (DATA, IMAGE_PORT, "SIGTERM")
    entry = Step("ENTRYPOINT", steps["ENTRYPOINT"]).words()
    assert entry == ["diamant", "start", "--data", DATA, "--listen", f"0.0.0.0:{IMAGE_PORT}", "--set", KEY_SETTING]
    assert IMAGE_PORT in steps["CMD"]
    for label in ("title", "description", "licenses", "version", "revision"):
        assert f"org.opencontainers.image.{label}=" in steps["LABEL"]


def test_both_images_install_the_same_wheel_and_no_compiler() -> None:
    """The first stage is the same in both, and compiles for the image's machine; the second takes what it left."""
    wheel, image = read_stages(DOCKERFILE)
    other_wheel, other_image = read_stages(DOCKERFILE.with_name("spark.Dockerfile"))
    assert wheel == other_wheel
    for steps in (image, other_image):
        assert steps[0] == Step("FROM", "${PYTHON}")
        assert "pip install --no-cache-dir --no-deps /wheels/*.whl" in dict(steps)["RUN"]
        assert not re.search(r"\b(gcc|build-essential|ziglang)\b", str(steps))
        assert ("binutils" in str(steps)) == ("apt-get purge -y --auto-remove binutils" in str(steps))


def test_all_sources_are_committed() -> None:
    """A clone of the repository has all that the build takes from it."""
    check_sources(DOCKERFILE)


def test_the_key_of_certificates_is_in_a_volume() -> None:
    """Of those that are documented, by a name; the image declares none there, as one without a name would be lost."""
    assert KEYS not in last_stage(DOCKERFILE)["VOLUME"]
    assert f"-v diamant-data:{DATA} -v diamant-keys:{KEYS} diamant" in (DOCKERFILE.parent / "README.md").read_text()


@pytest.mark.slow
def test_the_commands_of_the_image_work() -> None:
    """The broker starts with the image's command as a user without rights, is healthy while it runs and not
    before or after, takes and gives a record at its advertised address, has its signing key outside of its data, and stops
    cleanly. It starts again on its data.
    """
    with image_of(DOCKERFILE) as image, ReservedPort() as port:
        check_broker(image, str(port.number))


@pytest.mark.long
@pytest.mark.skipif(missing() != [] or os.geteuid() != 0, reason=f"needs root, and {' and '.join(NEEDED)}")
def test_the_images_are_built_and_work() -> None:
    """Buildah builds both; each starts in its own root, does the main job, is fast enough, and has a Spark cluster."""
    place = ROOT / "build" / "images"
    subprocess.run([sys.executable, "-m", "release.images", place], cwd=ROOT, check=True)
    in_own_network = ["unshare", "--mount", "--net", sys.executable, "-m", "release.image_check", place]
    subprocess.run(in_own_network, cwd=ROOT, check=True)


def check_broker(image: Image, port: str) -> None:
    """See above."""
    data = image.places[DATA]

    def in_place(words: list[str]) -> list[str]:
        """Words of the image with its paths and ports replaced by ours."""
        return [image.in_place(word).replace(IMAGE_PORT, port).replace("0.0.0.0", "127.0.0.1") for word in words]

    def is_healthy() -> bool:
        words = Step("CMD", image.metadata["HEALTHCHECK"].partition(" CMD ")[2]).words()
        asked = image.start([*words, "-b", f"127.0.0.1:{port}"], stderr=subprocess.DEVNULL)
        return asked.wait(TIMEOUT_S) == 0

    assert not is_healthy()
    command = in_place(Step("", image.metadata["ENTRYPOINT"]).words() + Step("", image.metadata["CMD"]).words())
    # A container has the port for HTTP to itself; this machine may have another broker.
    command += ["--set", "diamant.http.listen=127.0.0.1:0"]
    for run in ("first", "second"):
        log = image.root / f"{run}.log"
        with log.open("w") as errors, image.start(command, stdout=subprocess.PIPE, stderr=errors) as broker:
            assert broker.stdout is not None
            assert broker.stdout.readline().startswith("Diamant listens on "), log.read_text()
            assert is_healthy()
            check_a_record(f"localhost:{port}", run)
            erase = ["diamant", "erase", "users", "--key", "42", "--reason", "r", "-b", f"localhost:{port}"]
            create_compacted(f"localhost:{port}", "users")
            assert image.start(erase, stdout=subprocess.DEVNULL).wait(TIMEOUT_S) == NOTHING_MATCHED
            assert sorted(os.listdir(image.places[KEYS])) == ["certificate.key", "certificate.key.secret"]
            broker.send_signal(getattr(signal, image.metadata["STOPSIGNAL"]))
            assert broker.wait(TIMEOUT_S) == 0, log.read_text()
        assert not is_healthy()
        assert (data / ".kafka_cleanshutdown").exists()
        assert not re.search("ERROR|WARNING|Traceback", log.read_text()), log.read_text()
    if image.can_change_user:
        assert (data / "first-0").stat().st_uid == image.uid


def create_compacted(servers: str, topic: str) -> None:
    """Create a compacted topic unless it is there."""
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": servers})
    if topic not in admin.list_topics(timeout=TIMEOUT_S).topics:
        admin.create_topics([NewTopic(topic, 1, config={"cleanup.policy": "compact"})])[topic].result(TIMEOUT_S)


def check_a_record(servers: str, topic: str) -> None:
    """Send a thousand small records, and read the last one back."""
    from confluent_kafka import Consumer, Producer, TopicPartition

    count = 1_000
    producer = Producer({"bootstrap.servers": servers, "queue.buffering.max.messages": 0, "linger.ms": 5})
    for number in range(count):
        producer.produce(topic, str(number))
    assert producer.flush(TIMEOUT_S) == 0
    (broker,) = producer.list_topics(timeout=TIMEOUT_S).brokers.values()
    assert f"{broker.host}:{broker.port}" == servers
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "g", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, count - 1)])
    message = consumer.poll(TIMEOUT_S)
    assert message is not None
    assert (message.error(), message.value()) == (None, str(count - 1).encode())
    consumer.close()
