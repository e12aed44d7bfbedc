"""What the programs of this directory have in common: the steps a client goes through, and how their results are told.

The steps of groups are the same for each library in Python, which has `new_topic`, `send` and `Member`: a consumer with `poll`,
`commit` and `close`, which remembers what was `read` and `taken`, and has `partitions` and `progress`, the records before them.

A program is started with the address of a broker and, if wanted, the names of steps; with TLS if COMPAT_CA names a CA's file. It
prints `version VERSION` and then a line for each step: `NAME ok`, or `NAME unsupported: REASON` if the client has no such thing.
If one fails it ends with a message and a status other than 0. The programs in other languages keep to the same form.

    produce       records with keys, values and headers, compressed, each acknowledged at its offset
    consume       the same records, read by partition, without a group
    classic       two members share the partitions of a topic (eager), commit, leave; a third goes on where they stopped
    cooperative   the second member takes partitions over while the first keeps the others (KIP-429)
    static        a member comes back under its instance id without a rebalance; a second one fences the first (KIP-345)
    consumer      the steps of `classic` over the consumer protocol, assigned by the broker (KIP-848)
    transactions  committed, aborted, with offsets of a group; an older producer of the same id is fenced
    admin         topics, partitions, configs, records, groups and their offsets
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

STEPS = ("produce", "consume", "classic", "cooperative", "static", "consumer", "transactions", "admin")
CA = os.environ.get("COMPAT_CA")
"""A PEM file: the clients connect by TLS to a broker whose certificate is of this CA."""
PARTITIONS = 4
RECORDS = 40
TIMEOUT_S = 90
"""Far more than anything takes: a busy machine is not a fault of the broker."""
SESSION_TIMEOUT_MS = 60_000
"""Nobody waits for a member to be given up, so none may be because its machine was busy."""


class Unsupported(Exception):
    """The client has no such thing; nothing was asked of the broker."""


def unique(name: str) -> str:
    """Return a name for a topic or group that nobody else has."""
    return f"compat-{name}-{uuid.uuid4().hex[:10]}"


def payloads(count: int = RECORDS) -> list[tuple[bytes, bytes]]:
    """Keys and values to send: `count` of them, no two the same."""
    return [(b"key-%d" % number, b"value-%d" % number * 10) for number in range(count)]


def wait_until(is_reached: Callable[[], bool], act: Callable[[], object], what: str) -> None:
    """Call `act` until the condition holds. `act` is what takes the time: a poll. Raises TimeoutError after TIMEOUT_S."""
    deadline = time.monotonic() + TIMEOUT_S
    while not is_reached():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {TIMEOUT_S} s")
        act()


def wait_for_a_split(first: Any, second: Any) -> None:
    """Until two members have two partitions each."""
    everything = set(range(PARTITIONS))
    wait_until(
        lambda: first.partitions | second.partitions == everything and len(first.partitions) == len(second.partitions),
        lambda: (first.poll(), second.poll()),
        "two members share four partitions",
    )


def share_and_go_on(library: Any, bootstrap: str, **config: Any) -> None:
    """Two members share a topic, read it all and commit; a third finds only what came later."""
    topic, group = library.new_topic(bootstrap, "group"), unique("group")
    library.send(bootstrap, topic, payloads())
    first = library.Member(bootstrap, topic, group, **config)
    wait_until(lambda: len(first.partitions) == PARTITIONS, first.poll, "one member has all partitions")
    second = library.Member(bootstrap, topic, group, **config)
    wait_for_a_split(first, second)
    # What the first member had read before the second came is read again: it had not committed.
    wait_until(
        lambda: first.progress + second.progress == RECORDS,
        lambda: (first.poll(), second.poll()),
        "both have read everything",
    )
    assert {*first.read, *second.read} == {*payloads()}
    for member in (first, second):
        member.commit()
    for member in (first, second):
        member.close()
    library.send(bootstrap, topic, [(b"late", b"late")])
    third = library.Member(bootstrap, topic, group, **config)
    wait_until(lambda: bool(third.read), third.poll, "a third member reads what came later")
    third.close()
    assert third.read == [(b"late", b"late")]


def take_over(library: Any, bootstrap: str, **config: Any) -> None:
    """The first member of a cooperative group keeps two of its partitions throughout."""
    topic, group = library.new_topic(bootstrap, "cooperative"), unique("cooperative")
    first = library.Member(bootstrap, topic, group, **config)
    wait_until(lambda: len(first.partitions) == PARTITIONS, first.poll, "one member has all partitions")
    second = library.Member(bootstrap, topic, group, **config)
    wait_for_a_split(first, second)
    assert set(first.taken) == second.partitions
    assert len(first.taken) == 2
    first.close()
    second.close()


def come_back(library: Any, bootstrap: str, option: str) -> tuple[Any, Any, Callable[[str], Any]]:
    """A static member comes back without a rebalance; it, the other, and what makes a member of an instance id."""
    topic, group = library.new_topic(bootstrap, "static"), unique("static")

    def member(instance_id: str) -> Any:
        return library.Member(bootstrap, topic, group, **{option: instance_id})

    other, gone = member("other"), member("back")
    wait_for_a_split(other, gone)
    before, revocations = gone.partitions, len(other.taken)
    gone.close()  # a static member does not leave its group by that
    back = member("back")
    wait_until(lambda: bool(back.partitions), lambda: (back.poll(), other.poll()), "the static member is back")
    assert back.partitions == before
    assert len(other.taken) == revocations, "the other member sees no rebalance"
    return back, other, member


def run(program: Mapping[str, Any], version: str) -> None:
    """Take the address and the steps from the command line, run them side by side and tell in order what came of each.

    They are functions of the program, called like the steps, but for `consumer_protocol`; each coroutine has a loop of its own.
    """

    def do(step: str) -> None:
        done = program["consumer_protocol" if step == "consumer" else step](bootstrap)
        if asyncio.iscoroutine(done):
            asyncio.run(done)

    bootstrap, *wanted = sys.argv[1:]
    print(f"version {version}", flush=True)
    with ThreadPoolExecutor(len(STEPS)) as threads:
        # They share nothing but the broker, and wait most of the time.
        futures = {name: threads.submit(do, name) for name in wanted or STEPS}
    for name, future in futures.items():
        try:
            future.result()
        except Unsupported as reason:
            print(f"{name} unsupported: {reason}", flush=True)
        else:
            print(f"{name} ok", flush=True)
