"""kcat against a broker: `python kcat_client.py HOST:PORT [STEP ...]`; see steps.py."""

from __future__ import annotations

import re
import subprocess

import steps

TLS = ["-X", "security.protocol=SSL", "-X", f"ssl.ca.location={steps.CA}"] if steps.CA else []


def kcat(bootstrap: str, *arguments: str, text: str = "") -> str:
    """Run kcat to its end and return what it printed."""
    command = ["kcat", "-b", bootstrap, *TLS, *arguments]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=steps.TIMEOUT_S, check=False)
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


def lines(count: int = steps.RECORDS) -> list[str]:
    return [f"key-{number}:value-{number}" for number in range(count)]


def send(bootstrap: str, topic: str, *options: str) -> None:
    kcat(bootstrap, "-P", "-t", topic, "-K:", *options, text="\n".join(lines()))


def produce(bootstrap: str) -> None:
    topic = steps.unique("produce")
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        send(bootstrap, topic, "-p", "0", "-z", codec, "-X", "enable.idempotence=true")
    # The end of each partition, asked for by time.
    ends = kcat(bootstrap, "-Q", "-t", f"{topic}:0:-1")
    assert ends == f"{topic} [0] offset {5 * steps.RECORDS}\n"


def consume(bootstrap: str) -> None:
    topic = steps.unique("consume")
    send(bootstrap, topic, "-H", "header=h")
    read = kcat(bootstrap, "-C", "-t", topic, "-o", "beginning", "-e", "-q", "-f", "%k:%s %h\n")
    assert sorted(read.splitlines()) == sorted(f"{line} header=h" for line in lines())
    assert f'topic "{topic}" with ' in kcat(bootstrap, "-L")


def in_a_group(bootstrap: str, strategy: str) -> None:
    """A member reads everything and leaves; the next finds nothing left; two at once read everything together."""
    topic, group = steps.unique("group"), steps.unique("group")
    send(bootstrap, topic)
    options = [
        "-G",
        group,
        "-q",
        "-e",
        "-X",
        "auto.offset.reset=earliest",
        "-X",
        f"partition.assignment.strategy={strategy}",
    ]
    read = kcat(bootstrap, *options, "-f", "%k:%s\n", topic)
    assert sorted(read.splitlines()) == sorted(lines())
    assert kcat(bootstrap, *options, "-f", "%k:%s\n", topic) == ""
    # Two at once: each reads to the end of what it was given.
    again = ["-G", steps.unique("group"), *options[2:], "-X", "heartbeat.interval.ms=200", "-f", "%k:%s\n", topic]
    command = ["kcat", "-b", bootstrap, *TLS, *again]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    printed = [member.communicate(timeout=steps.TIMEOUT_S)[0] for member in both]
    assert [member.returncode for member in both] == [0, 0]
    assert {*"".join(printed).splitlines()} == {*lines()}


def classic(bootstrap: str) -> None:
    in_a_group(bootstrap, "range")


def cooperative(bootstrap: str) -> None:
    in_a_group(bootstrap, "cooperative-sticky")


def static(bootstrap: str) -> None:
    raise steps.Unsupported("one option of librdkafka, tried with confluent-kafka")


def consumer_protocol(bootstrap: str) -> None:
    raise steps.Unsupported("not in the librdkafka that most kcats are built with")


def transactions(bootstrap: str) -> None:
    """All of the input is one transaction; kcat has no other."""
    topic = steps.unique("txn")
    for _ in range(2):
        send(bootstrap, topic, "-p", "0", "-X", f"transactional.id={topic}")
    # Behind the records of each transaction stands its marker.
    assert kcat(bootstrap, "-Q", "-t", f"{topic}:0:-1") == f"{topic} [0] offset {2 * (steps.RECORDS + 1)}\n"
    options = ["-o", "beginning", "-e", "-q", "-f", "%k:%s\n", "-X", "isolation.level=read_committed"]
    assert sorted(kcat(bootstrap, "-C", "-t", topic, *options).splitlines()) == sorted(2 * lines())


def admin(bootstrap: str) -> None:
    raise steps.Unsupported("kcat lists metadata, no more")


if __name__ == "__main__":
    version = re.search(
        r"Version ([0-9.]+).*librdkafka ([0-9.]+)",
        subprocess.run(["kcat", "-V"], capture_output=True, text=True).stdout,
    )
    steps.run(
        globals(),
        f"{version[1]} (librdkafka {version[2]})" if version else "unknown",
    )
