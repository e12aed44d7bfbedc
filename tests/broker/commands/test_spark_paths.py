"""What `diamant spark` says about its paths before it starts Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from diamant.broker.cli import main
from diamant.broker.commands.spark.running import _check_paths
from tests.builder import make_batch


@pytest.mark.parametrize(("name", "is_said"), [("stats", True), ("find", True), ("clean", False), ("audit", False)])
def test_a_size_of_one_process_is_stated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, is_said: bool
) -> None:
    """Where `diamant log` has the same command and the files are small: Spark alone takes longer to start."""
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0" / f"{0:020}.log").write_bytes(make_batch((b"k", b"v")))
    _check_paths(name, [str(tmp_path)], (), None)
    said = capsys.readouterr()
    line = f": one process does this in a second, without Spark: diamant log {name} DIRECTORY\n"
    assert (said.out, said.err.endswith(line)) == ("", is_said)
    _check_paths(name, [str(tmp_path)], (), str(tmp_path / "parquet"))  # which `diamant log` does not write
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("words", [["stats"], ["find", "--key", "a"]])
def test_a_directory_of_another_kind_is_refused(tmp_path: Path, words: list[str]) -> None:
    """`dbus-1` and the like do not make a log directory, as for `diamant log`."""
    (tmp_path / "dbus-1").mkdir()
    found = CliRunner().invoke(main, ["spark", words[0], str(tmp_path), *words[1:]])
    assert (found.exit_code, f"{tmp_path}: not a log directory" in found.stderr) == (2, True)
