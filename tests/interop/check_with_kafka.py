"""Check, against a real Apache Kafka, that Diamant and Kafka can take over each other's data directories.

Run by hand; pytest does not collect it. It needs this project with its test tools installed, and a launcher: a command
that runs Apache Kafka 4 (a script of a dozen lines around its distribution). `--help` says what the launcher has to do.

    python tests/interop/check_with_kafka.py --kafka ./kafka-launcher

1. Diamant fills a new directory and is stopped. Kafka's dump-log reads every file of it.
2. Kafka starts on a copy: same topics, configs and records. It appends. Diamant takes the directory back and appends, dump-log
   reads it again, and Kafka takes it back once more.
3. Kafka fills a new directory (with transactions as well). Diamant takes it, appends, and Kafka takes it back.
4. Diamant is killed (SIGKILL) under load. Kafka starts on what it left: every acknowledged record is there, once, in order. It
   appends and stops, and Diamant takes the directory back. Then the same with Kafka killed and Diamant starting.
5. Diamant is killed ten times while it cleans compacted topics under load. After each start the last update of every key and all
   that must not have been cleaned is there. Kafka starts on what is left, has the same, goes on cleaning, and is killed as well;
   Diamant takes the directory back and cleans on, dump-log reads every file, and Kafka has the same once more.

Every check prints one line, `ok` or `FAILED` with what differs. The exit code is 1 when one failed.
"""

from __future__ import annotations

import random
import shutil
import sys
from collections.abc import Callable
from functools import partial

from all_kinds import append, check_configs_as_set, fill, transact
from compaction_checks import check_compaction
from crash_checks import check_unclean
from dump_checks import check_files, check_topics_command
from programs import Programs, command_line, run_parts
from topic_contents import compare, contents

LAUNCHER = """\
The launcher is a command with these subcommands:
  broker DIR PORT [NAME=VALUE...]
                         format DIR if it is new, then run a combined broker and controller (node id 1) on it in the
                         foreground, listening on 127.0.0.1:PORT, its controller on PORT+1, with further properties;
                         SIGTERM has to stop it cleanly and SIGKILL at once, so `exec` the JVM
  topics ARGS...         kafka-topics
  dump-log ARGS...       kafka-dump-log
It may consist of several words, as in --kafka 'docker exec kafka launcher'.
"""


def check_diamant_first(programs: Programs, seed: int) -> None:
    """Diamant, Kafka, Diamant, Kafka on the same data."""
    checks = programs.checks
    first = programs.work / "by-diamant"
    with programs.diamant_broker(first) as servers:
        fill(servers, seed)
        written = contents(servers)
        check_configs_as_set(checks, "Diamant", written)
        check_topics_command(programs, servers, written)
    check_files(programs, first, written)

    copy = programs.work / "by-diamant-copy"
    shutil.copytree(first, copy)
    names = set(written.topics)
    with programs.kafka_broker(copy) as servers:
        compare(checks, "Kafka on Diamant's directory", written, contents(servers, names))
        append(servers, seed + 10)
        written = contents(servers)
    with programs.diamant_broker(copy) as servers:
        compare(checks, "Diamant, back from Kafka", written, contents(servers, names))
        append(servers, seed + 20)
        written = contents(servers)
    check_files(programs, copy, written)
    with programs.kafka_broker(copy) as servers:
        compare(checks, "Kafka, once more", written, contents(servers, names))


def check_kafka_first(programs: Programs, seed: int) -> None:
    """Kafka, Diamant, Kafka on the same data."""
    checks = programs.checks
    directory = programs.work / "by-kafka"
    with programs.kafka_broker(directory) as servers:
        fill(servers, seed)
        transact(servers)
        written = contents(servers)
        check_configs_as_set(checks, "Kafka", written)
    with programs.diamant_broker(directory) as servers:
        compare(checks, "Diamant on Kafka's directory", written, contents(servers, set(written.topics)))
        append(servers, seed + 10)
        written = contents(servers)
    check_files(programs, directory, written)
    with programs.kafka_broker(directory) as servers:
        compare(checks, "Kafka, back from Diamant", written, contents(servers, set(written.topics)))


PARTS: dict[str, Callable[[Programs, int], None]] = {
    "diamant-first": check_diamant_first,
    "kafka-first": check_kafka_first,
    "unclean": check_unclean,
    "compaction": check_compaction,
}


def main() -> int:
    """Run the checks; the exit code."""
    parser = command_line(__doc__, LAUNCHER)
    parser.add_argument("--seed", type=int, default=None, help="seed of the records (default: a new one, printed)")
    parser.add_argument("--only", choices=tuple(PARTS), help="one part of the checks")
    options = parser.parse_args()
    seed = random.randrange(1 << 30) if options.seed is None else options.seed
    print(f"seed {seed}")
    parts = {name: partial(run, seed=seed) for name, run in PARTS.items() if options.only in (None, name)}
    return run_parts(options, parts)


if __name__ == "__main__":
    sys.exit(main())
