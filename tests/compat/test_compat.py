"""Clients against a broker: each of the programs in clients/ that this machine can run, step by step.

What is not here is left out with a message that says what it wants:

* the Python clients are part of the development environment and always run;
* kafkajs wants `node`, and NODE_PATH a directory with kafkajs in it;
* franz-go and Sarama want `go`, and their modules in its module cache (`go mod download` in their directories puts them there);
* the Java client and Kafka's tools want `java`, and KAFKA_HOME the directory of a Kafka distribution;
* kcat wants `kcat`.

Nothing is downloaded. COMPAT_BOOTSTRAP=HOST:PORT names another broker, such as a real Kafka, and COMPAT_CA its CA if it has TLS;
docs/reference/compatibility.md says with which settings.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from diamant.broker.broker import BlockingBroker
from tests.compat.clients.steps import STEPS

CLIENTS = Path(__file__).parent / "clients"
TIMEOUT_S = 600


class Missing(Exception):
    """What a program needs and this machine does not have."""


def python(program: str) -> Callable[[Path], list[str]]:
    """Return a program in Python, with the interpreter of the tests."""
    return lambda _: [sys.executable, str(CLIENTS / program)]


def found(command: str) -> str:
    """Where a command is. Raises Missing."""
    path = shutil.which(command)
    if path is None:
        raise Missing(f"no {command} on this machine")
    return path


def kafkajs(_: Path) -> list[str]:
    """Node, if it finds kafkajs by NODE_PATH."""
    node = found("node")
    if subprocess.run(
        [node, "-e", "require.resolve('kafkajs')"], capture_output=True, cwd=CLIENTS, check=False
    ).returncode:
        raise Missing("node does not find kafkajs: NODE_PATH names no directory that has it")
    return [node, str(CLIENTS / "kafkajs_client.js")]


def go(directory: str, place: Path = CLIENTS) -> Callable[[Path], list[str]]:
    """Return a program in Go, built from modules that are on the machine."""

    def build(scratch: Path) -> list[str]:
        program = scratch / directory
        built = subprocess.run(
            [found("go"), "build", "-o", str(program), "."],
            cwd=place / directory,
            env={**os.environ, "GOPROXY": "off", "GOFLAGS": "-mod=readonly", "GOTOOLCHAIN": "local"},
            capture_output=True,
            text=True,
            check=False,
        )
        if "GOPROXY=off" in built.stderr:
            raise Missing(f"modules of {directory}/go.mod are not in go's module cache")
        if "GOTOOLCHAIN=local" in built.stderr:
            raise Missing(f"go is older than {directory}/go.mod wants")
        assert built.returncode == 0, built.stderr
        return [str(program)]

    return build


def kafka_jars() -> str:
    """Return the class path of KAFKA_HOME. Raises Missing."""
    home = os.environ.get("KAFKA_HOME")
    if not home or not list(Path(home, "libs").glob("kafka-clients-*.jar")):
        raise Missing("KAFKA_HOME names no directory with libs/kafka-clients-*.jar")
    return f"{home}/libs/*"


def java(_: Path) -> list[str]:
    """Return the program in Java, compiled as it is started."""
    return [found("java"), "-XX:TieredStopAtLevel=1", "-cp", kafka_jars(), str(CLIENTS / "JavaClient.java")]


def kafka_tools(_: Path) -> list[str]:
    """Kafka's command line tools."""
    found("java")
    kafka_jars()
    return [sys.executable, str(CLIENTS / "kafka_tools.py")]


def kcat(_: Path) -> list[str]:
    """Return the program around kcat."""
    found("kcat")
    return [sys.executable, str(CLIENTS / "kcat_client.py")]


# How each is started, and what it has no such thing as: everything else must work.
PROGRAMS: dict[str, tuple[Callable[[Path], list[str]], set[str]]] = {
    "confluent-kafka": (python("confluent_client.py"), set()),
    "aiokafka": (python("aiokafka_client.py"), {"cooperative", "consumer"}),
    "kafka-python": (python("kafka_python_client.py"), {"consumer"}),
    "kafkajs": (kafkajs, {"consume", "cooperative", "static", "consumer"}),
    "franz-go": (go("franz_go"), set()),
    "sarama": (go("sarama"), {"consumer"}),
    "java": (java, set()),
    "kafka-tools": (kafka_tools, {"cooperative", "static"}),
    "kcat": (kcat, {"static", "consumer", "admin"}),
}


def run(client: str, bootstrap: Callable[[], str], place: Path, **variables: str) -> None:
    """Run a client's program and check what came of each step; skip the test if the machine lacks something."""
    prepare, unsupported = PROGRAMS[client]
    try:
        command = prepare(place)
    except Missing as reason:
        pytest.skip(str(reason))
    done = subprocess.run(
        [*command, bootstrap()],
        capture_output=True, text=True, timeout=TIMEOUT_S, check=False, cwd=place, env=os.environ | variables,
    )  # fmt: skip
    results = dict(line.split(maxsplit=1) for line in done.stdout.splitlines() if line.partition(" ")[0] in STEPS)
    expected = {step: "unsupported" if step in unsupported else "ok" for step in STEPS}
    assert {step: result.split(":")[0] for step, result in results.items()} == expected, done.stderr
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("client", PROGRAMS)
def test_a_client_does_all_that_it_can(client: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """The client does all that it can: produce, consume, groups of each kind, transactions, administration."""
    named = os.environ.get("COMPAT_BOOTSTRAP")
    run(client, lambda: named or request.getfixturevalue("compat_broker").bootstrap_servers, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("client", PROGRAMS)
def test_client_with_tls(client: str, secured_broker: BlockingBroker, tmp_path: Path) -> None:
    """Each client passes over TLS and trusts the throw-away CA; Python's own clients check it as strictly as Python from 3.13
    on.
    """
    authority = secured_broker.client_config().ca
    assert authority is not None
    (tmp_path / "ca.pem").write_text(authority)
    run(client, lambda: secured_broker.bootstrap_servers, tmp_path, COMPAT_CA=str(tmp_path / "ca.pem"))
