"""`diamant log` on segments that no broker writes: each command answers in lines, and none loses a batch that it cannot read."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from diamant.broker.cli import main
from diamant.protocol.batches.control import COMMIT, control_key
from diamant.storage.env.env import RealEnv
from tests.builder import make_marker, with_header
from tests.storage.recovery.misplaced import (
    CONTROLS,
    OVERFLOWING,
    TOP,
    UNSERVABLE,
    Segments,
    at,
    control,
    write,
)

TRANSACTIONAL = 0x10


def of_producer(base_offset: int, **fields: int) -> bytes:
    """Return a batch in a transaction of producer 7."""
    numbered = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0, "attributes": TRANSACTIONAL}
    return at(base_offset, **numbered | fields)


def marker(offset: int, *, is_commit: bool = False) -> bytes:
    return bytes(with_header(make_marker(7, is_commit=is_commit), base_offset=offset))


HOSTILE: dict[str, Segments] = {
    **{f"{case}, too far": segments for case, segments in OVERFLOWING.items()},
    **{case: segments for case, (segments, _, _) in UNSERVABLE.items()},
    **{f"{case}, in a transaction": {0: [of_producer(0), one, at(4)], 7: [at(7)]} for case, one in CONTROLS.items()},
    **{f"{case}, alone": {0: [at(0), one, at(4)], 7: [at(7)]} for case, one in CONTROLS.items()},
    "unknown control type": {0: [of_producer(0), control(b"\0\0\0\x63"), at(4)], 7: [at(7)]},
    "control with a codec": {0: [of_producer(0), control(control_key(COMMIT), attributes=0x31), at(4)], 7: [at(7)]},
    "control with many records": {
        0: [of_producer(0), control(control_key(COMMIT), record_count=2**31 - 1)],
        7: [at(7)],
    },
    "control without a producer": {0: [at(0), control(b"\0", producer_id=-1), at(4)], 7: [at(7)]},
    "negative count": {0: [at(0), at(3, record_count=-1), at(6)], 9: [at(9)]},
    "least count": {0: [at(0), at(3, record_count=-(2**31)), at(6)], 9: [at(9)]},
    "largest count": {0: [at(0), at(3, record_count=2**31 - 1), at(6)], 9: [at(9)]},
    "negative count in a transaction": {0: [of_producer(0), of_producer(3, record_count=-1), marker(6)], 7: [at(7)]},
    "largest timestamps": {0: [at(0), at(3, base_timestamp=TOP - 1, max_timestamp=TOP)], 6: [at(6)]},
    "least timestamps": {0: [at(0), at(3, base_timestamp=-(2**63), max_timestamp=-(2**63))], 6: [at(6)]},
    "largest horizon": {0: [at(0), at(3, attributes=0x40, base_timestamp=TOP)], 6: [at(6)]},
    "abort near the largest offset": {
        0: [at(0)],
        TOP - 20: [of_producer(TOP - 20), marker(TOP - 15)],
        TOP - 10: [at(TOP - 10)],
    },
    "abort at the largest offset": {0: [at(0)], TOP - 20: [of_producer(TOP - 20), marker(TOP)]},
    "transaction across the largest offset": {0: [of_producer(0), of_producer(TOP), marker(4)], 6: [at(6)]},
    "segment at the largest offset": {0: [at(0)], TOP: [at(TOP)]},
    "empty segment at the largest offset": {0: [at(0)], TOP: []},
    "segment beyond the largest offset": {0: [at(0)], 10**20 - 1: [at(3)]},
    "closed beyond the largest offset": {0: [at(0), at(TOP), at(3)], 6: [at(6)]},
    "closed negative": {0: [at(0), at(-(2**63)), at(3)], 6: [at(6)]},
}
COMMANDS = {
    "stats": ("stats", "--top", "2"),
    "dump": ("dump", "--records"),
    "find": ("find", "--key", "k1"),
    "explain": ("explain",),
    "whatif": ("whatif",),
    "clean": ("clean", "--force", "--dry-run"),
    "clean in Python": ("clean", "--force", "--dry-run", "--engine", "inline"),
    "clean as Kafka": ("clean", "--force", "--dry-run", "--mode", "kafka"),
    "clean after a crash": ("clean", "--force", "--dry-run", "--unclean"),
}


def run(command: str, directory: Path) -> Result:
    name, *options = COMMANDS[command]
    return CliRunner().invoke(main, ["log", name, str(directory), *options])


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("case", HOSTILE)
def test_a_command_answers_in_lines(tmp_path: Path, case: str, command: str) -> None:
    """No batch makes a command print a traceback; an error names a file of the directory."""
    directory = tmp_path / "t-0"
    write(RealEnv(), str(directory), HOSTILE[case])
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    result = run(command, directory)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    assert result.exit_code in (0, 1, 3)
    assert "Traceback" not in result.output
    assert result.exit_code != 1 or str(directory) in result.output
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before


@pytest.mark.parametrize("case", [f"{case}, in a transaction" for case in CONTROLS])
@pytest.mark.parametrize("command", ["stats", "find"])
def test_an_unreadable_control_record_is_named_once(tmp_path: Path, command: str, case: str) -> None:
    """The record is named with file and position; its transaction counts as open."""
    directory = tmp_path / "t-0"
    write(RealEnv(), str(directory), HOSTILE[case])
    result = run(command, directory)
    assert result.exit_code == 1
    assert result.output.count("unreadable control record: ") == 1
    assert f"{0:020d}.log at {len(of_producer(0))}: unreadable control record" in result.output


@pytest.mark.parametrize("engine", ["inline", "compiled"])
@pytest.mark.parametrize("options", [(), ("--unclean",)])
@pytest.mark.parametrize("case", [f"{case}, too far" for case in OVERFLOWING])
def test_a_clean_divides_a_segment_and_loses_no_latest_record(
    tmp_path: Path, case: str, options: tuple[str, ...], engine: str
) -> None:
    """With and without recovery, in both engines: the live records before and after are the same."""
    directory = tmp_path / "t-0"
    write(RealEnv(), str(directory), HOSTILE[case])

    def found() -> list[str]:
        lines = CliRunner().invoke(main, ["log", "find", str(directory), "--key", "k1"]).output.splitlines()
        return [line.partition(", found")[0] for line in lines if " live," in line]

    before = found()
    result = CliRunner().invoke(main, ["log", "clean", str(directory), "--force", "--engine", engine, *options])
    assert result.exit_code == 0, result.output
    assert found() == before


@pytest.mark.parametrize("is_orderly", [False, True])
def test_a_copy_without_indexes_lacks_no_aborted_transaction(tmp_path: Path, is_orderly: bool) -> None:
    """The next start rebuilds all indexes of such a segment; only after an orderly stop is their absence a problem."""
    directory = tmp_path / "t-0"
    write(RealEnv(), str(directory), {0: [of_producer(0), marker(3), at(4)]}, with_indexes=False)
    if is_orderly:
        (tmp_path / ".kafka_cleanshutdown").touch()
    result = run("stats", directory)
    assert "no index has the aborted transaction" not in result.output
    assert result.exit_code == is_orderly
