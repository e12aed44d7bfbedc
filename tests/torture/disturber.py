"""What is done to a broker while clients use it: the disturbances of a seed."""

from __future__ import annotations

import errno
import os
import random
import resource
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.torture.draws import generator, pick
from tests.torture.shim import Kind, Op, Rule, Who

FILES = Op.OPEN | Op.READ | Op.WRITE | Op.SYNC | Op.RENAME | Op.UNLINK | Op.TRUNCATE | Op.LINK | Op.MKDIR
CHANGES = FILES & ~Op.READ & ~Op.OPEN
ERRORS = {
    errno.EIO: FILES & ~Op.OPEN,
    errno.ENOSPC: Op.WRITE | Op.OPEN | Op.RENAME | Op.LINK | Op.MKDIR,
    errno.EMFILE: Op.OPEN,
    errno.EINTR: Op.OPEN | Op.READ | Op.WRITE | Op.SYNC,
}
STEPS = (6, 30)
KINDS = {
    "kill": 6, "kill at a change": 6, "torn write": 3, "kill another process": 2, "kill at a start": 3, "plain kill": 1,
    "error": 6, "error at a start": 2, "full": 3, "short": 2, "stopped": 1, "cut": 2, "short on connections": 1, "stop": 1,
    "clock": 2, "few descriptors": 2, "kill in a swap": 6, "no room for a batch": 3, "no sync": 2,
}  # fmt: skip
"""Kinds of disturbances, and how often each is taken."""
LOOPS, LOOP = 0.35, (5, 30)
"""How often a crash is followed by starts of which each is killed, as by a supervisor that tries for ever, and how many."""
LIVES = 5
"""One start in so many lives, and is killed at a call of the load after it."""
FEW_S = 1.0
REAL = "real"
"""The topic that librdkafka produces to."""
JUMP_S = 3000
"""Records of clients whose clock is an hour ahead of the broker's are refused."""


@dataclass(frozen=True, slots=True)
class Disturbance:
    """One round: the rules that apply while some steps are taken, and what comes then."""

    name: str
    steps: int
    rules: tuple[Rule, ...] = ()
    quota: int | None = None
    """Bytes that may still be written; None: all."""
    descriptors: int | None = None
    """Files that the broker may still open, for `FEW_S`; None: as many as it is used to."""
    ahead_s: int = 0
    """What the clock jumps by; afterwards it jumps back."""
    at_start: bool = False
    """The rules apply to a start after a kill, too."""
    compacts: bool = False
    """A compaction is begun with it."""
    for_clients: bool = False
    """Real clients run in it."""
    ends: str = "kill"
    """If the broker still runs after the steps: "kill", "stop" (SIGTERM), or "" to let it run."""


def choose(seed: int, number: int) -> Disturbance:
    """Draw a round."""
    name = pick(KINDS, seed, number, "disturbance")
    rng = generator(seed, number, name)
    steps = rng.randint(*STEPS)
    match name:
        case "kill":
            rule = Rule(FILES | Op.SEND | Op.RECEIVE, Kind.KILL, 1, skip=rng.randrange(500))
        case "kill at a change":
            rule = Rule(_some(rng, CHANGES), Kind.KILL, 1, skip=rng.randrange(1 << rng.randrange(1, 7)))
        case "kill in a swap":
            rule = Rule(Op.RENAME, Kind.KILL, 1, skip=rng.randrange(12), part="/state-")
            return Disturbance(name, steps, (rule,), compacts=True)
        case "torn write":
            rule = Rule(Op.WRITE, Kind.TORN, 1, skip=rng.randrange(1 << rng.randrange(1, 8)))
        case "kill another process":
            rule = Rule(_some(rng, FILES), Kind.KILL, 0, Who.OTHERS, skip=rng.randrange(40))
        case "kill at a start":
            rule = Rule(FILES, Kind.KILL, 1, skip=rng.randrange(150))
            return Disturbance(name, 2, (rule,), at_start=True)
        case "plain kill":
            return Disturbance(name, steps)
        case "error" | "error at a start":
            code = rng.choice([*ERRORS])
            skip = rng.randrange(1 << rng.randrange(1, 8))
            rule = Rule(_some(rng, ERRORS[code]), Kind.FAIL, code, skip=skip, times=rng.choice((1, 1, 3, 20)))
            return Disturbance(name, steps, (rule,), at_start=name != "error", ends=rng.choice(("", "kill", "stop")))
        case "full":
            return Disturbance(name, steps, quota=rng.randrange(20_000), ends=rng.choice(("", "kill", "stop")))
        case "no room for a batch":
            # The first batch of a producer, and some that come later, with others in flight behind them.
            at = [(partition, skip) for partition in (0, 1) for skip in (0, rng.randrange(1, 20))]
            rules = tuple(Rule(Op.WRITE, Kind.FAIL, errno.ENOSPC, skip=skip, part=f"/{REAL}-{n}/0") for n, skip in at)
            return Disturbance(name, steps, rules, for_clients=True, ends="")
        case "no sync":
            part = rng.choice(("/events-", "/keyed-", "/state-"))
            return Disturbance(name, steps, (Rule(Op.SYNC, Kind.FAIL, errno.EIO, skip=rng.randrange(4), part=part),))
        case "few descriptors":
            return Disturbance(name, steps, descriptors=rng.randrange(8), ends=rng.choice(("", "kill", "stop")))
        case "short":
            ops = _some(rng, Op.READ | Op.WRITE)
            return Disturbance(name, steps, (Rule(ops, Kind.SHORT, skip=rng.randrange(20), times=60),), ends="")
        case "stopped":
            who = rng.choice((Who.ANYONE, Who.OTHERS))
            rule = Rule(
                FILES, Kind.STOP, int(who is Who.ANYONE), who, skip=rng.randrange(200 if who is Who.ANYONE else 40)
            )
            return Disturbance(name, steps, (rule,), ends="")
        case "cut":
            rule = Rule(_some(rng, Op.SEND | Op.RECEIVE), Kind.CUT, skip=rng.randrange(60), times=rng.choice((1, 3)))
            return Disturbance(name, steps, (rule,), ends="")
        case "short on connections":
            return Disturbance(name, steps, (Rule(Op.SEND | Op.RECEIVE, Kind.SHORT, times=40),), ends="")
        case "clock":
            return Disturbance(name, steps, ahead_s=rng.randint(-JUMP_S, JUMP_S), ends=rng.choice(("", "kill", "stop")))
        case _:
            return Disturbance(name, steps, ends="stop")
    return Disturbance(name, steps, (rule,))


def crash_loop(seed: int, number: int) -> list[tuple[Rule, bool]]:
    """Draw the starts after the crash of a round, most often none: the call at which each is killed, and if it lives before."""
    rng = generator(seed, number, "crash loop")
    if rng.random() > LOOPS:
        return []
    return [
        (Rule(FILES | Op.SEND | Op.RECEIVE, Kind.KILL, 1, skip=rng.randrange(300)), True)
        if rng.randrange(LIVES) == 0
        else (Rule(FILES, Kind.KILL, 1, skip=rng.randrange(1 << rng.randrange(3, 11))), False)
        for _ in range(rng.randint(*LOOP))
    ]


def limit_descriptors(process: int, more: int | None) -> None:
    """Let a process open so many files more than it has; None: as many as it may."""
    with suppress(OSError):  # it is gone
        _, most = resource.prlimit(process, resource.RLIMIT_NOFILE)
        limit = most if more is None else len(os.listdir(f"/proc/{process}/fd")) + more
        resource.prlimit(process, resource.RLIMIT_NOFILE, (limit, most))


def resume_descendants(process: int) -> None:
    """SIGCONT to all below a process."""
    for tasks in Path("/proc").glob(f"{process}/task/*/children"):
        with suppress(OSError):
            for child in map(int, tasks.read_text().split()):
                os.kill(child, signal.SIGCONT)
                resume_descendants(child)


def _some(rng: random.Random, ops: Op) -> Op:
    """One kind of call, or in one of four cases all."""
    return ops if rng.random() < 0.25 else rng.choice([*ops])
