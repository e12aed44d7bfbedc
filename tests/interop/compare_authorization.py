"""Ask a real Apache Kafka and Diamant the same questions about access, and compare their answers.

Run by hand; pytest does not collect it. The launcher is that of check_with_kafka.py.

    python tests/interop/compare_authorization.py --kafka ./kafka-launcher [--record]

Every API, with ACLs for each operation; then patterns, denials, hosts and principals (questions.py in
tests/broker/security/authorization). Then a directory with users (SCRAM) and ACLs goes from one to the other and back.
`--record` keeps Kafka's answers, which the suite holds ours against.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from programs import free_port, is_listening, wait_until

from tests.broker.security.authorization import recorded
from tests.broker.security.authorization.asking import ADMIN, Asker, logged_in, logged_in_by_scram
from tests.broker.security.authorization.questions import MIXED, SCENARIOS, WITHOUT_ACL_ALLOWED, Client, Scenario
from tests.broker.wire import WireClient

PASSWORDS = {name: f"{name}-secret" for name in ("admin", "alice", "bob")}
USERS = " ".join(f'user_{name}="{password}"' for name, password in PASSWORDS.items())
JAAS = f"org.apache.kafka.common.security.plain.PlainLoginModule required {USERS};"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:admin;User:ANONYMOUS",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
    "listener.name.clients.plain.sasl.jaas.config": JAAS,
    "listener.name.clients.scram-sha-256.sasl.jaas.config": f"{SCRAM_MODULE} required;",
}


def kafka_settings(port: int, controller_port: int) -> list[str]:
    """Return a node whose clients authenticate, and whose controller does not ask them to."""
    listeners = f"CLIENTS://127.0.0.1:{port},INNER://127.0.0.1:{controller_port + 1}"
    return [
        f"listeners={listeners},CONTROLLER://127.0.0.1:{controller_port}",
        f"advertised.listeners={listeners},CONTROLLER://127.0.0.1:{controller_port}",
        "listener.security.protocol.map=CLIENTS:SASL_PLAINTEXT,INNER:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name=INNER",
        *(f"{name}={value}" for name, value in SETTINGS.items()),
    ]


Ask: TypeAlias = Callable[[str], Coroutine[Any, Any, dict[str, Any]]]
"""Asks the broker at an address."""


def asking(scenarios: Sequence[Scenario]) -> Ask:
    """Ask everything, by PLAIN."""

    async def ask(address: str) -> dict[str, Any]:
        asker = Asker(lambda client: logged_in(address, client, PASSWORDS))
        await asker.prepare()
        answers = await asker.answers(scenarios)
        await asker.close()
        return answers

    return ask


def asking_users_of_the_directory(*, makes_them: bool) -> Ask:
    """Ask as users whose credentials, like the ACLs, are in the directory; or first put them there."""

    async def ask(address: str) -> dict[str, Any]:
        if makes_them:
            asker = Asker(lambda client: logged_in(address, client, PASSWORDS))
            await asker.prepare()
            await asker.set_acls(MIXED.acls)
            await make_users(await logged_in(address, Client(ADMIN), PASSWORDS))
            await asker.close()
        asker = Asker(lambda client: logged_in_by_scram(address, client, PASSWORDS))
        await asker.prepare()
        answers = await asker.answers([MIXED], sets_acls=False)
        await asker.close()
        return answers

    return ask


async def make_users(admin: WireClient) -> None:
    """Put SCRAM credentials of all users into the metadata log, and wait until they count."""
    salt, iterations = b"salt of the users", 4096
    upsertions = [
        {
            "name": name,
            "mechanism": 1,
            "iterations": iterations,
            "salt": salt,
            "salted_password": hashlib.pbkdf2_hmac("sha256", password.encode(), salt, iterations),
        }
        for name, password in PASSWORDS.items()
    ]
    answer = await admin.call(51, 0, {"deletions": [], "upsertions": upsertions})
    assert not any(result.error_code for result in answer.results), answer
    await _wait_for_users(admin)


async def _wait_for_users(admin: WireClient) -> None:
    while len((await admin.call(50, 0, {"users": None})).results) < len(PASSWORDS):
        await asyncio.sleep(0.1)


def of_kafka(launcher: list[str], directory: Path, ask: Ask, *more: str) -> dict[str, Any]:
    """Start a Kafka with `more` settings, ask it, stop it."""
    port = free_port(19200)
    command = [*launcher, "broker", str(directory), str(port), *kafka_settings(port, port + 1), *more]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: is_listening(port), "Kafka listens")
            return asyncio.run(ask(f"127.0.0.1:{port}"))
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()


def of_diamant(directory: Path, ask: Ask, *more: str) -> dict[str, Any]:
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
    command = [sys.executable, "-m", "diamant", "start", "--data", str(directory), "--log-level", "warning"]
    command += ["--listen", f"CLIENTS://127.0.0.1:{port}"]
    command += [word for setting in (*given, *more) for word in ("--set", setting)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            return asyncio.run(ask(f"127.0.0.1:{port}"))
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()


def check_directories(launcher: list[str], work: Path) -> list[str]:
    """Differences after a directory with users and ACLs has gone from one broker to the other and back."""
    different = []
    for first in ("kafka", "diamant"):
        directory = work / f"first-{first}"
        order = ["kafka", "diamant"] if first == "kafka" else ["diamant", "kafka"]
        answers = []
        for number, broker in enumerate([*order, first]):
            ask = asking_users_of_the_directory(makes_them=number == 0)
            answers.append(of_kafka(launcher, directory, ask) if broker == "kafka" else of_diamant(directory, ask))
        for number, name in ((1, order[1]), (2, f"{first} again")):
            found = differences(answers[0], answers[number])
            different += [f"{first}, then {name}: {one}" for one in found]
        print(f"a directory of {first}, opened by {order[1]} and by {first} again: {len(answers[0])} questions each")
    return different


def differences(kafkas: dict[str, Any], ours: dict[str, Any]) -> list[str]:
    """Return a line for each question that is not answered alike."""
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
            kafkas |= of_kafka(options.kafka, Path(work) / f"kafka{number}", asking(scenarios), *more)
            if not options.only_record:
                ours |= of_diamant(Path(work) / f"diamant{number}", asking(scenarios), *more)
        moved = [] if options.only_record else check_directories(options.kafka, Path(work))
    if options.record or options.only_record:
        recorded.write(kafkas)
    different = [] if options.only_record else differences(kafkas, ours)
    print("\n".join([*different, *moved]))
    print(f"{len(kafkas)} questions, {len(different)} are answered differently; {len(moved)} after a change of brokers")
    return 1 if different or moved else 0


if __name__ == "__main__":
    sys.exit(main())
