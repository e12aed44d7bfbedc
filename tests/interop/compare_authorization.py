"""Ask a real Apache Kafka and Diamant the same questions about access, and compare their answers.

Run by hand; pytest does not collect it. The launcher is that of check_with_kafka.py.

    python tests/interop/compare_authorization.py --kafka ./kafka-launcher [--record]

Every API, with ACLs for each operation; then patterns, denials, hosts and principals (tests/broker/security/authorization/
questions.py). `--record` keeps Kafka's answers, which the suite holds ours against.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from programs import free_port

from tests.broker.security.authorization import recorded
from tests.broker.security.authorization.asking import Asker, logged_in
from tests.broker.security.authorization.questions import SCENARIOS, WITHOUT_ACL_ALLOWED, Scenario

PASSWORDS = {name: f"{name}-secret" for name in ("admin", "alice", "bob")}
USERS = " ".join(f'user_{name}="{password}"' for name, password in PASSWORDS.items())
JAAS = f"org.apache.kafka.common.security.plain.PlainLoginModule required {USERS};"
SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:admin;User:ANONYMOUS",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.clients.plain.sasl.jaas.config": JAAS,
}


def kafka_settings(port: int, controller_port: int) -> list[str]:
    """A node whose clients authenticate, and whose controller does not ask them to."""
    listeners = f"CLIENTS://127.0.0.1:{port},INNER://127.0.0.1:{controller_port + 1}"
    return [
        f"listeners={listeners},CONTROLLER://127.0.0.1:{controller_port}",
        f"advertised.listeners={listeners},CONTROLLER://127.0.0.1:{controller_port}",
        "listener.security.protocol.map=CLIENTS:SASL_PLAINTEXT,INNER:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name=INNER",
        *(f"{name}={value}" for name, value in SETTINGS.items()),
    ]


async def answers_of(address: str, scenarios: Sequence[Scenario]) -> dict[str, Any]:
    """All answers of a broker."""
    asker = Asker(lambda client: logged_in(address, client, PASSWORDS))
    await asker.prepare()
    try:
        return await asker.answers(scenarios)
    finally:
        await asker.close()


def of_kafka(launcher: list[str], directory: Path, scenarios: Sequence[Scenario], *more: str) -> dict[str, Any]:
    """Start a Kafka with `more` settings, ask it, stop it."""
    port = free_port(19200)
    command = [*launcher, "broker", str(directory), str(port), *kafka_settings(port, port + 1), *more]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            subprocess.run([*launcher, "ready", str(port)], check=True)
            return asyncio.run(answers_of(f"127.0.0.1:{port}", scenarios))
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()


def of_diamant(directory: Path, scenarios: Sequence[Scenario], *more: str) -> dict[str, Any]:
    """Start Diamant, ask it, stop it."""
    port = free_port(19300)
    settings = {
        "listener.security.protocol.map": "CLIENTS:SASL_PLAINTEXT",
        "diamant.http.listen": "",
        "offsets.topic.num.partitions": "3",
        "transaction.state.log.num.partitions": "3",
        **SETTINGS,
    }
    given = [f"{name}={value}" for name, value in settings.items()]
    command = [
        sys.executable,
        "-m",
        "diamant",
        "start",
        "--data",
        str(directory),
        "--listen",
        f"CLIENTS://127.0.0.1:{port}",
    ]
    command += [word for setting in (*given, *more) for word in ("--set", setting)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            return asyncio.run(answers_of(f"127.0.0.1:{port}", scenarios))
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()


def differences(kafkas: dict[str, Any], ours: dict[str, Any]) -> list[str]:
    """A line for each question that is not answered alike."""
    return [
        f"{name}\n    Kafka   {json.dumps(kafkas[name])}\n    Diamant {json.dumps(ours.get(name))}"
        for name in kafkas
        if kafkas[name] != ours.get(name)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kafka", required=True, type=shlex.split, help="the launcher, see check_with_kafka.py")
    parser.add_argument("--record", action="store_true", help="keep Kafka's answers in tests/golden/authorization")
    parser.add_argument("--only-record", action="store_true", help="do not ask Diamant")
    options = parser.parse_args()
    kafkas: dict[str, Any] = {}
    ours: dict[str, Any] = {}
    rounds = [(SCENARIOS, ()), (WITHOUT_ACL_ALLOWED, ("allow.everyone.if.no.acl.found=true",))]
    with tempfile.TemporaryDirectory() as work:
        for number, (scenarios, more) in enumerate(rounds):
            kafkas |= of_kafka(options.kafka, Path(work) / f"kafka{number}", scenarios, *more)
            if not options.only_record:
                ours |= of_diamant(Path(work) / f"diamant{number}", scenarios, *more)
    if options.record or options.only_record:
        recorded.write(kafkas)
    different = [] if options.only_record else differences(kafkas, ours)
    print("\n".join(different))
    print(f"{len(kafkas)} questions, {len(different)} are answered differently")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
