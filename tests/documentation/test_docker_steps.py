"""docker/Dockerfile: what it declares, and its commands, without a container engine. `make image-check` has one.

The port is a free one on 127.0.0.1.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import ExitStack
from functools import partial

import pytest

from release.image_check import forget
from release.images import NEEDED, missing
from tests.documentation.docker_image import ROOT, Image, Step, check_sources, image_of, last_stage, read_stages
from tests.ports import ReservedPort

DOCKERFILE = ROOT / "docker" / "Dockerfile"
IMAGE_PORT = "9092"
DATA = "/data"
KEYS = "/keys"
KEY_SETTING = f"diamant.certificate.key.file={KEYS}/certificate.key"
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
    """The first stage is the same in both, and compiles for the image's machine; the next takes all packages for that
    machine. Both run on the builder's. The last takes what they left: little is emulated where the machines differ.
    """
    wheel, packages, image = read_stages(DOCKERFILE)
    other_wheel, other_packages, other_image = read_stages(DOCKERFILE.with_name("spark.Dockerfile"))
    assert wheel == other_wheel
    for steps in (packages, other_packages):
        assert steps[0] == Step("FROM", "build AS packages")
        assert re.search(r"_PYTHON_HOST_PLATFORM=linux-.* \$INSTALL .*-r requirements.txt .*/wheels/\*.whl", str(steps))
    for steps in (image, other_image):
        assert steps[0] == Step("FROM", "--platform=$TARGETPLATFORM ${PYTHON}")
        assert Step("COPY", "--from=packages /opt/diamant /opt/diamant") in steps
        assert not re.search(r"\b(gcc|build-essential|ziglang|binutils|pip)\b", str(steps))


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
    cleanly. It starts again on its data. Once it does the main job that `make image-check` asks of the image.
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
        with (
            log.open("w") as errors,
            image.start(command, stdout=subprocess.PIPE, stderr=errors) as broker,
            ExitStack() as stack,
        ):
            stack.callback(broker.kill)
            assert broker.stdout is not None
            assert broker.stdout.readline().startswith("Diamant listens on "), log.read_text()
            assert is_healthy()
            check_a_record(f"localhost:{port}", run)
            if run == "first":
                forget(partial(run_program, image, f"localhost:{port}"))
            assert sorted(os.listdir(image.places[KEYS])) == ["certificate.key", "certificate.key.secret"]
            broker.send_signal(getattr(signal, image.metadata["STOPSIGNAL"]))
            assert broker.wait(TIMEOUT_S) == 0, log.read_text()
        assert not is_healthy()
        assert (data / ".kafka_cleanshutdown").exists()
        assert not re.search("ERROR|WARNING|Traceback", log.read_text()), log.read_text()
    if image.can_change_user:
        assert (data / "first-0").stat().st_uid == image.uid


def run_program(image: Image, servers: str, *words: str, stdin: str = "") -> str:
    """Run a program to its end, and return what it prints."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    variables = {"DIAMANT_BOOTSTRAP_SERVERS": servers}
    with image.start([image.in_place(word) for word in words], variables, **pipes) as process:
        out, error = process.communicate(stdin, timeout=TIMEOUT_S)
    assert process.returncode == 0, f"{words}: {out}{error}"
    return out


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
