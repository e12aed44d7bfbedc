"""Compare `diamant log dump` with a real Kafka's dump-log, line by line, on any log directories.

Run by hand; pytest does not collect it. `--kafka` names a launcher as for check_with_kafka.py, of which only the subcommand
`dump-log ARGS...` (kafka-dump-log) is used.

    python tests/interop/compare_dumps.py --kafka ./kafka-launcher DIRECTORY...

Every .log, .index, .timeindex and .txnindex below the directories is dumped by both, and what we found is put into the words of
Kafka 4.3.1. Files of the metadata log are left out: both decode them, in words of their own.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from diamant.cleaner.offline.dump import BatchItem, EntryItem, Item, RecordItem, dump_file
from diamant.storage.env.env import RealEnv

SUFFIXES = (".log", ".index", ".timeindex", ".txnindex")
FILES_AT_ONCE = 500


def main() -> None:
    """Compare, and exit with 1 if anything differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kafka", required=True, help="the launcher")
    parser.add_argument("directories", nargs="+", type=Path)
    arguments = parser.parse_args()
    files = [
        path
        for directory in arguments.directories
        for path in sorted(directory.resolve().rglob("*"))
        if path.suffix in SUFFIXES and path.stat().st_size and "__cluster_metadata-" not in str(path)
    ]
    different = lines = 0
    for start in range(0, len(files), FILES_AT_ONCE):
        for path, theirs in kafka_dumps(arguments.kafka, files[start : start + FILES_AT_ONCE]):
            items = dump_file(RealEnv(), str(path), with_records=True)
            # A payload may hold line ends.
            ours = [normal(line) for line in "\n".join(map(in_kafkas_words, items)).split("\n") if line]
            lines += len(ours)
            if ours != theirs:
                different += 1
                print(f"FAILED {path}: {len(ours)} lines, Kafka has {len(theirs)}")
                for our, their in zip(ours, theirs, strict=False):
                    if our != their:
                        print(f"  ours   {our}\n  Kafka's {their}")
                        break
    print(f"{len(files)} files, {lines} lines, {different} files differ")
    sys.exit(1 if different or not files else 0)


def kafka_dumps(launcher: str, files: list[Path]) -> Iterator[tuple[Path, list[str]]]:
    """Yield each file and the lines that dump-log prints for it."""
    command = [*shlex.split(launcher), "dump-log", "--print-data-log", "--files", ",".join(map(str, files))]
    output = subprocess.run(command, capture_output=True, check=True).stdout.decode(errors="replace")
    parts = re.split(r"^Dumping (.*)\n", output, flags=re.MULTILINE)
    for path, text in zip(parts[1::2], parts[2::2], strict=True):
        lines = text.partition("\nNon-consecutive offsets")[0].split("\n")
        yield Path(path), [normal(line) for line in lines if line and not line.startswith("Log starting offset")]


def normal(line: str) -> str:
    """Take out what is no matter of contents: words for what a batch says already, and how bad UTF-8 is shown."""
    line = re.sub("\ufffd+", "\ufffd", line)
    if not line.startswith("| offset"):
        return line
    line = re.sub(r"(CreateTime|LogAppendTime|NoTimestampType): ", "timestamp: ", line, count=1)
    return re.sub(r"isValid: true crc: \d+", "sequence: -1 headerKeys: []", line, count=1)


def in_kafkas_words(item: Item) -> str:
    """Return the line that dump-log prints for an item."""
    if isinstance(item, BatchItem):
        return batch_line(item)
    if isinstance(item, RecordItem):
        return record_line(item)
    if isinstance(item, EntryItem):
        start = "version: 0 " if item.kind == "aborted transaction" else ""
        return start + " ".join(f"{camel(name)}: {value}" for name, value in item.values.items())
    return str(item)


def batch_line(item: BatchItem) -> str:
    """Return a batch; those of magic 0 and 1 have fewer fields."""
    kind = "NoTimestampType" if item.magic == 0 else item.timestamp_type
    end = f"{kind}: {item.max_timestamp} size: {item.size} magic: {item.magic} compresscodec: {item.codec} crc: {item.crc}"
    end += f" isvalid: {str(item.crc_is_valid).lower()}"
    if item.magic < 2:
        return f"offset: {item.last_offset} position: {item.position} {end}"
    horizon = "empty" if item.delete_horizon_ms is None else f"[{item.delete_horizon_ms}]"
    return (
        f"baseOffset: {item.base_offset} lastOffset: {item.last_offset} count: {item.record_count} "
        f"baseSequence: {item.base_sequence} lastSequence: {item.last_sequence} producerId: {item.producer_id} "
        f"producerEpoch: {item.producer_epoch} partitionLeaderEpoch: {item.leader_epoch} "
        f"isTransactional: {str(item.is_transactional).lower()} isControl: {str(item.is_control).lower()} "
        f"deleteHorizonMs: OptionalLong{'.' if horizon == 'empty' else ''}{horizon} position: {item.position} {end}"
    )


def record_line(item: RecordItem) -> str:
    """Return a record, as `normal` leaves it."""
    line = (
        f"| offset: {item.offset} timestamp: {item.timestamp} keySize: {size(item.key)} valueSize: {size(item.value)}"
    )
    line += f" sequence: {item.sequence} headerKeys: [{','.join(header.key for header in item.headers)}]"
    if item.decoded is not None:
        name, values = item.decoded
        return f"{line} endTxnMarker: {name} coordinatorEpoch: {values['coordinator_epoch']}"
    if item.key is not None:
        line += f" key: {item.key.decode(errors='replace')}"
    if item.value is not None:
        line += f" payload: {item.value.decode(errors='replace')}"
    return line


def size(data: bytes | None) -> int:
    """Bytes of a key or value, -1 for null."""
    return -1 if data is None else len(data)


def camel(name: str) -> str:
    """Return a field's name as Kafka writes it."""
    first, *rest = name.split("_")
    return first + "".join(map(str.title, rest))


if __name__ == "__main__":
    os.environ.setdefault("LC_ALL", "C.UTF-8")
    main()
