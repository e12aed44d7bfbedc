"""The commands that pages of the documentation show, run as they stand, and whether the page shows what they print.

A block

    ```console
    $ diamant explain users --key 42
    users at 2026-03-01T12:00:00.000Z by the broker's clock
    ...
    ```

is a command, and what it prints, errors included; a line of three dots stands for any lines. Times, durations, ids, digests,
sizes and the widths of tables are not compared. Every page has a broker of its own, at the addresses that pages use, and what its
`prepare` has written there.

python -m tests.documentation.console_pages docs/PAGE.md       writes into the page what the commands print now
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from diamant.broker.broker import BlockingBroker, Broker
from diamant.broker.config.broker_config import BrokerConfig
from diamant.broker.topics.creation import create_topics
from diamant.broker.topics.creation_checks import check_new_topic
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import Record

ROOT = Path(__file__).resolve().parents[2]
KAFKA_ADDRESS, HTTP_ADDRESS = "127.0.0.1:9092", "127.0.0.1:9644"
BLOCK = re.compile(r"^```console\n(.*?)^```", re.DOTALL | re.MULTILINE)
COLUMNS = 130
PATIENCE_S = 60.0
FIRST_BROKER, FIRST_ERASURE = "docs/tutorials/first-broker.md", "docs/tutorials/first-erasure.md"
FORGET_A_PERSON = "docs/tutorials/forget-a-person.md"
ASKS = "certificates|latest|compact|explain|erase|redact|verify|status|clock|person|topic"


class Step(NamedTuple):
    """A command, and the lines that the page shows for it."""

    command: str
    shown: list[str]


def steps(page: Path) -> list[Step]:
    """Return the commands of a page."""
    return [step for block in BLOCK.findall(page.read_text()) for step in steps_of(block)]


def steps_of(block: str) -> list[Step]:
    """Return the commands of one block."""
    found: list[Step] = []
    is_open = False
    for line in block.splitlines():
        if line.startswith("$ ") or is_open:
            text = line.removeprefix("$ ").strip()
            is_continued = is_open
            is_open = text.endswith("\\")
            text = text.removesuffix("\\").strip()
            if is_continued:
                found[-1] = found[-1]._replace(command=f"{found[-1].command} {text}")
            else:
                found.append(Step(text, []))
        else:
            found[-1].shown.append(line)
    return found


def commands_of(block: str) -> list[list[str]]:
    """Return the lines of each command of a block, without what they print."""
    found: list[list[str]] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append([line])
        elif found[-1][-1].endswith("\\"):
            found[-1].append(line)
    return found


VARIABLE = (
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)?"), "TIME"),
    (re.compile(r"\b\d{2}:\d\d:\d\d(\.\d+)?Z"), "TIME"),
    (re.compile(r"\b1[5-9]\d{11}(\.\d+)?\b"), "MS"),
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{13,}"), "ID"),
    (re.compile(r"\b(?=\w*\d)[0-9a-f]{12,}\b"), "ID"),
    (re.compile(r"\b\d+(\.\d+)? ?(ms|[wdhms])\b( \d+(\.\d+)?(ms|[wdhms])\b)*"), "DURATION"),
    (re.compile(r'("(?:duration|ahead)_ms": )-?[\d.]+'), r"\1DURATION"),
    (re.compile(r"segment\.ms=\d+ on the topic"), "segment.ms=N on the topic"),
    # A client sends its records in as many batches as it likes.
    (re.compile(r"\b\d[\d,]* (more )?bytes\b"), "SIZE"),
    (re.compile(r"[─━═-]{3,}"), "-"),
)


def plain(text: str) -> str:
    """Return a text without what differs from run to run, and without its lines' ends, since wrapped ones may end elsewhere."""
    text = " ".join(text.split())
    for pattern, word in VARIABLE:
        text = pattern.sub(word, text)
    return text


def is_shown(printed: str, shown: list[str]) -> bool:
    """Whether lines of a page are what was printed."""
    pieces = "\n".join(shown).replace("\n", "\n\n")
    wanted = ".*".join(re.escape(plain(piece)) for piece in re.split(r"^\.\.\.$", pieces, flags=re.MULTILINE))
    return re.fullmatch(wanted, plain(printed)) is not None


class Shell:
    """A directory in which commands are run, against one broker."""

    def __init__(self, directory: Path, broker: BlockingBroker) -> None:
        self.directory = directory
        self.broker = broker
        assert broker.addresses.http is not None
        self.http_address = f"127.0.0.1:{broker.addresses.http.port}"
        programs = directory / ".programs"
        programs.mkdir()
        diamant = programs / "diamant"
        diamant.write_text(
            f'#!/bin/sh\ncase $1 in {ASKS}) set -- "$@" --bootstrap-server {broker.bootstrap_servers};; esac\n'
            f'exec {sys.executable} -m diamant.broker.cli "$@"\n'
        )
        diamant.chmod(0o755)
        python = programs / "python"
        python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        python.chmod(0o755)
        self.environment = os.environ | {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "COLUMNS": str(COLUMNS),
        }

    def run(self, command: str) -> str:
        """What a command prints; with an address of this broker's shown as that of the pages."""
        done = subprocess.run(
            command.replace(HTTP_ADDRESS, self.http_address),
            shell=True,
            cwd=self.directory,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )
        # A reader's broker is where the commands look by default, so no hint names it.
        printed = done.stdout.replace(f" -b {self.broker.bootstrap_servers}", "")
        printed = printed.replace(self.broker.bootstrap_servers, KAFKA_ADDRESS)
        return printed.replace(self.http_address, HTTP_ADDRESS).replace(f"{self.directory}/", "")

    def wait_until_shown(self, step: Step) -> str:
        """What a command prints that only asks, as soon as it is what the page shows; at last, whatever it is."""
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            printed = self.run(step.command)
            only_asks = step.command.startswith(("curl -s http", "diamant explain")) and " -d " not in step.command
            if is_shown(printed, step.shown) or not only_asks or time.monotonic() > deadline_s:
                return printed
            time.sleep(0.1)


def append(broker: BlockingBroker, topic: str, *batches: list[tuple[bytes, bytes | None]], **configs: str) -> None:
    """Make a topic with one partition, if it is not there, and write batches of keys and values to it."""

    async def write() -> None:
        if topic not in broker.node.topics.by_name:
            new = check_new_topic(
                broker.node.topics, topic, 1, 1, None, {name.replace("_", "."): text for name, text in configs.items()}
            )
            await create_topics(broker.node.topics, [new])
        log = broker.node.topics.log(topic, 0)
        for batch in batches:
            now_ms = broker.env.clock.now_ms()
            records = [Record(index, now_ms, key, value) for index, (key, value) in enumerate(batch)]
            log.append_internal(build_batch(records, base_offset=0))
            broker.node.log_events.changed(log)

    broker.call(write())


def ten_thousand_users(broker: BlockingBroker, _shell: Shell) -> None:
    """10,000 records of 1,000 keys."""
    batches = [
        [(b"user-%d" % (number % 1000), b"%019d" % number) for number in range(first, first + 100)]
        for first in range(0, 10_000, 100)
    ]
    append(broker, "users", *batches, cleanup_policy="compact")


def prices(broker: BlockingBroker, _shell: Shell) -> None:
    """A price list, some of it superseded."""
    words = [(b"banana", b"1.10"), (b"apple", b"0.40"), (b"banana", b"1.30")]
    append(broker, "prices", *([word] for word in words), cleanup_policy="compact", segment_ms="3600000")


def superseded_customer(broker: BlockingBroker, _shell: Shell) -> None:
    """A key with two values in a segment that is closed after an hour."""
    words = [(b"customer-42", b"first"), (b"customer-42", b"second"), (b"customer-43", None)]
    append(broker, "users", *([word] for word in words), cleanup_policy="compact", segment_ms="3600000")


def customer_42(broker: BlockingBroker, _shell: Shell) -> None:
    """The shop of a page: customers by key, orders with an address inside, and a group that has not read the last of it."""
    from confluent_kafka import Consumer, TopicPartition

    customers = [
        (b"customer-41", b'{"name": "Grace", "email": "grace@example.com"}'),
        (b"customer-42", b'{"name": "Ada", "email": "ada@example.com"}'),
        (b"customer-43", b'{"name": "Edith", "email": "edith@example.com"}'),
        (b"customer-42", b'{"name": "Ada", "email": "ada@example.com", "phone": "555-0142"}'),
    ]
    append(
        broker, "customers", *([one] for one in customers), cleanup_policy="compact", max_compaction_lag_ms="604800000"
    )
    orders = [
        (
            b"order-%d" % number,
            b'{"item": %d, "email": "%s"}' % (number, [b"ada@example.com", b"grace@example.com"][number % 2]),
        )
        for number in range(6)
    ]
    append(broker, "orders", *([one] for one in orders), cleanup_policy="delete", retention_ms="31536000000")
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "mailing"})
    consumer.commit(offsets=[TopicPartition("customers", 0, 3)], asynchronous=False)
    consumer.close()


def files_of_the_page(page: str) -> Callable[[BlockingBroker, Shell], None]:
    """Nothing is written, but the page's files are saved as it says: a block whose first line is `# NAME.py` or `# NAME.yaml`."""

    def save(broker: BlockingBroker, shell: Shell) -> None:
        for text, name in re.findall(
            r"^```\w+\n(# (\w+\.(?:py|yaml))\n.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.M
        ):
            (shell.directory / name).write_text(text.replace(KAFKA_ADDRESS, broker.bootstrap_servers))

    return save


PAGES: dict[str, tuple[Callable[[BlockingBroker, Shell], None], dict[str, Any]]] = {
    "docs/how-to/answer-an-erasure-request.md": (customer_42, {"diamant_clock": "manual"}),
    "docs/how-to/compact-on-demand.md": (ten_thousand_users, {}),
    "docs/how-to/explain.md": (superseded_customer, {"diamant_clock": "manual"}),
    "docs/how-to/test-your-compaction.md": (prices, {"diamant_clock": "manual"}),
    FIRST_BROKER: (files_of_the_page(FIRST_BROKER), {}),
    FIRST_ERASURE: (files_of_the_page(FIRST_ERASURE), {"diamant_clock": "manual"}),
    FORGET_A_PERSON: (files_of_the_page(FORGET_A_PERSON), {}),
}
"""By page: what is written before its first command, and what its broker is configured with."""


@contextmanager
def shell(page: str, directory: Path) -> Iterator[Shell]:
    """A broker with what a page needs, and a shell for its commands."""
    prepare, configs = PAGES[page]
    config = BrokerConfig(
        listen="127.0.0.1:0",
        data_dir=directory / "data",
        diamant_http_listen="127.0.0.1:0",
        properties={"diamant.certificate.key.file": str(directory / "certificate.key")},
        **configs,
    )
    with Broker(config) as broker:
        made = Shell(directory, broker)
        prepare(broker, made)
        yield made


def rewrite(page: Path) -> None:
    """Put into a page what its commands print."""
    with tempfile.TemporaryDirectory() as directory, shell(str(page.relative_to(ROOT)), Path(directory)) as made:

        def block(found: re.Match[str]) -> str:
            lines: list[str] = []
            for step, shown in zip(steps_of(found[1]), commands_of(found[1]), strict=True):
                printed = made.wait_until_shown(step).rstrip().splitlines()
                lines += [*shown, *(line.rstrip() for line in printed)]
            return "```console\n" + "".join(f"{line}\n" for line in lines) + "```"

        page.write_text(BLOCK.sub(block, page.read_text()))


if __name__ == "__main__":
    for name in sys.argv[1:]:
        rewrite((ROOT / name).resolve())
