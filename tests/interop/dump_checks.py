"""What Kafka's own tools say of a stopped broker's files, and of a running Diamant."""

from __future__ import annotations

import re
from pathlib import Path

from programs import Programs
from topic_contents import Contents

# What dump-log says about a file that it does not like; its exit code is 0 all the same.
COMPLAINT = re.compile(
    r"isvalid: false|Exception|[Mm]ismatch|out of order|Non-consecutive|not found|[Cc]orrupt|Could not|ERROR|Error at"
    r"|Failed|failed|invalid bytes"
)


def complaints(output: str) -> list[str]:
    """Return the lines of a tool's output that speak of a fault.

    dump-log finds the first record of every segment but the first non-consecutive ("-1 is followed by 1080"): it compares with
    a start of -1, whoever wrote the file.
    """
    output = re.sub(r"Non-consecutive offsets in .*\n\s+-1 is followed by \d++(?!\n\s+\d+ is followed)", "", output)
    return [line[:300] for line in output.splitlines() if COMPLAINT.search(line)]


def check_files(programs: Programs, directory: Path, seen: Contents) -> None:
    """Let dump-log read every file of a stopped broker's directory."""
    checks = programs.checks
    partitions = [path for path in sorted(directory.iterdir()) if path.is_dir() and path.name != "__cluster_metadata-0"]

    def files(*suffixes: str) -> list[str]:
        return [str(path) for folder in partitions for path in sorted(folder.iterdir()) if path.suffix in suffixes]

    where = f"dump-log on {directory.name}"
    logs = files(".log")
    output = programs.tool("dump-log", "--files", ",".join(logs), "--print-data-log", "--skip-record-metadata")
    faults = complaints(output)
    batches = output.count("isvalid: true")
    if batches == 0:
        faults.append("no batch was shown")
    checks.report(f"{where}: .log", faults, f"{len(logs)} segments, {batches} batches")

    several = [path for path in logs if "/segments-0/" in path]
    checks.report(
        f"{where}: 'segments' has several", [] if len(several) > 1 else [f"only {several}"], f"{len(several)}"
    )

    indexes = files(".index", ".timeindex", ".txnindex")
    output = programs.tool("dump-log", "--files", ",".join(indexes))
    entries = sum(line.startswith(("offset:", "timestamp:", "version:")) for line in output.splitlines())
    checks.report(
        f"{where}: .index, .timeindex, .txnindex", complaints(output), f"{len(indexes)} files, {entries} entries"
    )
    indexes = files(".index", ".timeindex")
    output = programs.tool("dump-log", "--files", ",".join(indexes), "--index-sanity-check")
    faults = complaints(output)
    # An offset index without entries is said to be empty, which is all right where a log has less than one interval.
    if (passed := output.count("passed sanity check") + output.count(".index is empty")) != len(indexes):
        faults.append(f"{passed} of {len(indexes)} passed")
    checks.report(f"{where}: --index-sanity-check", faults, f"{passed} passed")
    output = programs.tool("dump-log", "--files", ",".join(indexes), "--verify-index-only")
    checks.report(f"{where}: --verify-index-only", complaints(output), f"{len(indexes)} files")

    snapshots = files(".snapshot")
    output = programs.tool("dump-log", "--files", ",".join(snapshots))
    producers = output.count("producerId:")
    faults = complaints(output)
    if producers == 0:
        faults.append("no producer in any snapshot, though there were idempotent ones")
    checks.report(f"{where}: .snapshot", faults, f"{len(snapshots)} files, {producers} producers")

    metadata = directory / "__cluster_metadata-0"
    parts = [str(path) for path in sorted(metadata.iterdir()) if path.suffix in (".log", ".checkpoint")]
    output = programs.tool("dump-log", "--files", ",".join(parts), "--cluster-metadata-decoder")
    faults = complaints(output)
    faults += [f"no TOPIC_RECORD of {name}" for name in seen.topics if f'"name":"{name}"' not in output]
    checks.report(f"{where}: metadata log", faults, f"{len(parts)} files, {output.count('payload')} records")


def check_cleaned_files(programs: Programs, directory: Path) -> None:
    """Let dump-log read the logs and indexes of the cleaned topics of a stopped broker's directory."""
    paths = sorted(directory.glob("updates-*/*"))
    logs = [str(path) for path in paths if path.suffix == ".log"]
    output = programs.tool("dump-log", "--files", ",".join(logs), "--print-data-log", "--skip-record-metadata")
    # Gaps are what cleaning makes.
    output = re.sub(r"Non-consecutive offsets in .*\n(\s+-?\d+ is followed by \d+\n?)+", "", output)
    programs.checks.report("dump-log on cleaned .log", complaints(output), f"{len(logs)} segments")
    indexes = [str(path) for path in paths if path.suffix in (".index", ".timeindex")]
    output = programs.tool("dump-log", "--files", ",".join(indexes), "--index-sanity-check")
    programs.checks.report(
        "dump-log on cleaned indexes: --index-sanity-check", complaints(output), f"{len(indexes)} files"
    )
    output = programs.tool("dump-log", "--files", ",".join(indexes), "--verify-index-only")
    # It takes a batch whose records are all gone for one without a timestamp, also in logs that Kafka has cleaned.
    output = re.sub(r"Found timestamp mismatch in .*\n(\s+Index timestamp: \d+, log timestamp: -1\n?)+", "", output)
    programs.checks.report(
        "dump-log on cleaned indexes: --verify-index-only", complaints(output), f"{len(indexes)} files"
    )


def check_topics_command(programs: Programs, servers: str, seen: Contents) -> None:
    """Kafka's own admin client, which is not librdkafka, describes the topics of a running Diamant."""
    output = programs.tool("topics", "--bootstrap-server", servers, "--describe")
    faults = complaints(output)
    faults += [f"no line for {name}" for name in seen.topics if not re.search(rf"Topic: {re.escape(name)}\s", output)]
    programs.checks.report("kafka-topics --describe against Diamant", faults)
