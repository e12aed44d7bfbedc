"""Faults planted in a copy of the product, to see that the torture program finds them: `python -m tests.torture.planted`."""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]


class Fault(NamedTuple):
    """Texts of the product and what takes their place."""

    edits: tuple[tuple[str, str, str], ...]
    """File below `diamant`, text, its replacement."""
    power_every: int = 4
    """1 if only a loss of power shows it, or shows it in time."""


FAULTS = {
    "an fsync left out": Fault(
        (
            (
                "storage/env/env.py",
                "            os.fdatasync(self._fd)\n        except",
                "            pass\n        except",
            ),
        ),
        1,
    ),
    "a rename before the sync": Fault(
        (
            (
                "storage/env/env.py",
                "            if sync:\n                file.sync()\n        finally:\n            file.close()\n"
                "        env.rename(temporary, path)",
                "        finally:\n            file.close()\n        env.rename(temporary, path)\n"
                "        env.sync_dir(parent(path))\n"
                "        if sync:\n            env.sync_file(path)",
            ),
        ),
        1,
    ),
    "a lost index entry": Fault(
        (
            (
                "storage/log/control_append.py",
                "        segment.txn_index.append(",
                "        if aborted.last_offset % 3:\n            segment.txn_index.append(",
            ),
        )
    ),
    "an ACL check removed": Fault(
        (
            (
                "broker/security/authorization/access.py",
                "        is_allowed = known.get(name)\n        if is_allowed is None",
                "        is_allowed = True\n        if is_allowed is None",
            ),
        )
    ),
    "a scan that skips a file": Fault(
        (
            (
                "cleaner/evidence/scan/file_listing.py",
                "        elif entry == names.BOOTSTRAP_CHECKPOINT:",
                "        elif entry.endswith('.bak'):\n            continue\n        elif entry == names.BOOTSTRAP_CHECKPOINT:",
            ),
            (
                "cleaner/evidence/search/file_census.py",
                "                name = prefix + entry\n",
                "                if entry.endswith('.bak'):\n                    continue\n"
                "                name = prefix + entry\n",
            ),
        )
    ),
    "an offset committed before its append": Fault(
        (
            (
                "broker/coordinators/internal_topic.py",
                "        base_offset = log.append_internal(batch).base_offset\n",
                "        if self.name == '__consumer_offsets' and producer_id < 0:\n            return log.log_end_offset\n"
                "        base_offset = log.append_internal(batch).base_offset\n",
            ),
        )
    ),
    "a batch sent again is not recognised": Fault(
        (
            (
                "storage/producers/producer.py",
                "    if header.producer_epoch == state.producer_epoch:\n        duplicate = _duplicate(state, header)\n"
                "        if duplicate is not None:\n            return duplicate\n    elif",
                "    if header.producer_epoch == state.producer_epoch:\n        return None\n    elif",
            ),
        )
    ),
    "a torn batch stays": Fault(
        (("storage/recovery/segment_recovery.py", "        segment.truncate_bytes(valid_bytes)\n", "        pass\n"),),
        1,
    ),
    "a missing marker": Fault(
        (
            (
                "broker/transactions/markers.py",
                "            if log is not None:\n                write_marker(",
                "            if log is not None and partition != 1:\n                write_marker(",
            ),
        )
    ),
    "a swap that is not ended after a crash": Fault(
        (
            (
                "storage/recovery/leftovers.py",
                "    for name in swaps:\n        env.rename(",
                "    for name in swaps:\n        env.remove(f'{path}/{name}')\n        continue\n        env.rename(",
            ),
        ),
        1,
    ),
    "what is in the log is said not to be": Fault(
        (
            (
                "broker/handlers/data/produce.py",
                "        if self._has_sequences:\n            check_synced([part.log for part in self._to_flush])\n",
                "",
            ),
            (
                "broker/handlers/data/produce.py",
                "unsynced = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)",
                "unsynced = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)",
            ),
        )
    ),
    "a first batch is overtaken": Fault(
        (("storage/log/appender.py", "                producers.refuse(header, now_ms)\n", "                pass\n"),)
    ),
    "a deletion that is not recorded": Fault(
        (
            (
                "broker/topics/deletion.py",
                "    metadata.append([RemoveTopicRecord(",
                "    list([RemoveTopicRecord(",
            ),
        )
    ),
}


def plant(fault: Fault, place: Path) -> None:
    """Copy the product and the tests, and put a fault in."""
    for name in ("diamant", "tests"):
        shutil.copytree(
            ROOT / name, place / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", "golden")
        )
    for file, text, replacement in fault.edits:
        path = place / "diamant" / file
        source = path.read_text()
        assert source.count(text) == 1, f"{file} has {source.count(text)} times: {text}"
        path.write_text(source.replace(text, replacement))


def find(fault: Fault, duration: str) -> tuple[float, str]:
    """Run the program on a copy; return after how many seconds it found something, and what."""
    with tempfile.TemporaryDirectory(prefix="diamant-planted-") as directory:
        place = Path(directory)
        plant(fault, place)
        command = [
            sys.executable,
            "-m",
            "tests.torture",
            "--for",
            duration,
            "--power-every",
            str(fault.power_every),
            "--place",
            str(place / "work"),
        ]
        began = time.monotonic()
        done = subprocess.run([*command, "--first"], cwd=place, capture_output=True, text=True, check=False)
        found = re.search(r"^FOUND (.*)", done.stdout, re.MULTILINE)
        return time.monotonic() - began, found[1] if found else ""


def main() -> int:
    """Plant one fault after another; 1 if one was not found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--for", dest="duration", default="10m", metavar="TIME", help="for each")
    parser.add_argument("names", nargs="*", help="words of those to plant")
    given = parser.parse_args()
    missed = 0
    for name, fault in FAULTS.items():
        if given.names and not any(word in name for word in given.names):
            continue
        took_s, found = find(fault, given.duration)
        missed += not found
        print(f"{name}: {f'found after {took_s:.0f} s: {found[:300]}' if found else 'NOT FOUND'}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
