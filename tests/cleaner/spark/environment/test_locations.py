"""Paths and URIs: parsing, access, and hidden secrets."""

from __future__ import annotations

import pickle
from contextlib import closing
from pathlib import Path

import pytest

from diamant.cleaner.spark.environment.locations import Location, LocationFile
from diamant.cleaner.spark.environment.spark_errors import SparkError


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("/data/logs/", "/data/logs"),
        ("file:///data/logs", "/data/logs"),
        ("file:/data/logs", "/data/logs"),
        ("file://localhost/data/logs", "/data/logs"),
        ("file:///data/what?#is", "/data/what?#is"),
    ],
)
def test_local_places(text: str, path: str) -> None:
    """A path and a file URI lead to the same place."""
    location = Location.parse(text)
    assert (location.path, location.is_local, str(location)) == (path, True, path)


def test_a_place_in_s3_shows_no_secret() -> None:
    """A place shows its secrets neither as text nor in a traceback, and takes them along when it is pickled."""
    location = Location.parse("s3://user:secret@bucket/logs/?endpoint_override=localhost:9000&scheme=http")
    child = location.child("t-0").child("0.log")
    assert str(child) == "s3://bucket/logs/t-0/0.log"
    assert "secret" not in repr(child) + str(child)
    assert pickle.loads(pickle.dumps(child)) == child
    assert (child.name, child.parent, child.path) == ("0.log", location.child("t-0"), "bucket/logs/t-0/0.log")
    assert "secret" in child.filesystem


def test_a_secret_with_a_slash_is_asked_for_in_another_way() -> None:
    """The slash would end the secret and show its first part as the bucket; %2F is accepted."""
    with pytest.raises(SparkError, match="%2F"):
        Location.parse("s3://user:ab/cd@bucket/logs")
    assert str(Location.parse("s3://user:ab%2Fcd@bucket/logs")) == "s3://bucket/logs"


@pytest.mark.parametrize("text", ["hdfs://host/logs", "http://user:secret@host/x", "s3://", "file://host/data"])
def test_an_unsupported_location_is_refused(text: str) -> None:
    """With what is expected, and without a password."""
    with pytest.raises(SparkError, match="expected") as raised:
        Location.parse(text)
    assert "secret" not in str(raised.value)


def test_files_are_listed_written_read_and_removed(tmp_path: Path) -> None:
    """A write creates the parent directories; a removal includes the content."""
    root = Location.parse(str(tmp_path))
    file = root.child("a").child("b").child("file")
    file.write_bytes(b"0123456789")
    with file.parent.child("other").open_output() as stream:
        stream.write(b"abc")
    entries = [(entry.name, entry.is_dir, entry.size) for entry in file.parent.entries()]
    assert entries == [("file", False, 10), ("other", False, 3)]
    assert [(entry.name, entry.is_dir) for entry in root.entries()] == [("a", True)]
    found = file.find()
    assert found is not None
    assert found.size == 10
    with closing(file.open()) as opened:
        assert opened.pread(4, 8) == b"89"
        assert opened.size() == 10
    assert file.read_bytes() == b"0123456789"
    root.child("a").remove()
    assert root.entries() == []
    root.child("a").remove()
    assert root.child("a").find() is None
    with pytest.raises(FileNotFoundError):
        file.open()


def test_a_glob_matches_within_names(tmp_path: Path) -> None:
    """A star does not cross directories, and passes hidden files over as a shell does."""
    for name in ("one/t-0", "one/t-1", "two/t-0", ".hidden/t-0"):
        (tmp_path / name).mkdir(parents=True)

    def names(pattern: str) -> list[str]:
        return [
            location.path.removeprefix(f"{tmp_path}/") for location in Location.parse(f"{tmp_path}/{pattern}").expand()
        ]

    assert names("*/t-0") == ["one/t-0", "two/t-0"]
    assert names("one/t-[1-9]") == ["one/t-1"]
    assert names("t*/t-?") == ["two/t-0"]
    assert names("nothing/*") == []
    assert names("one") == ["one"]


def test_a_remote_file_is_read_ahead(tmp_path: Path) -> None:
    """Small sequential reads take few requests; any order gives the right bytes."""
    content = bytes(range(250))
    (tmp_path / "file").write_bytes(content)
    with closing(LocationFile(Location(str(tmp_path / "file")), read_ahead_bytes=100)) as file:
        for count, position in ((10, 0), (10, 90), (20, 95), (250, 0), (5, 3), (50, 240), (10, 250)):
            assert file.pread(count, position) == content[position : position + count]
        assert (file.size(), file.fileno()) == (250, None)
