"""Log directories and staging locations in an S3 object store: read there, cleaned through it, and left unchanged."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from diamant.cleaner.rules.plan import CleanPlan
from diamant.cleaner.runners.inline import InlineRunner
from diamant.cleaner.spark.clean.in_session import session_engine
from diamant.cleaner.spark.clean.staging import new_place
from diamant.cleaner.spark.environment.locations import Location
from diamant.cleaner.spark.environment.spark_errors import SparkError
from diamant.cleaner.spark.environment.spark_settings import SparkSettings
from diamant.cleaner.spark.runner.runner import SparkRunner
from diamant.cleaner.spark.runner.staging_view import staging_place
from diamant.cleaner.spark.source.data_source import read_log
from diamant.storage.errors import StorageError
from diamant.storage.log.log import Log
from tests.cleaner.runners.rounds import Swapper, leftovers, make_log, plan_of, segment_files
from tests.cleaner.spark.fake_driver import FAKE
from tests.cleaner.spark.object_store import SECRET, ObjectStore
from tests.cleaner.spark.runner.test_spark_runner import check_result, check_untouched
from tests.cleaner.spark.source.reading import read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow
COLUMNS = ("topic", "partition", "offset", "timestamp_ms", "key", "value")
BUCKET = "bucket"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with ObjectStore(tmp_path_factory.mktemp("s3") / "server.log") as started:
        yield started


@pytest.fixture
def store(server: ObjectStore) -> Iterator[ObjectStore]:
    """An object store with one empty bucket."""
    server.make_bucket(BUCKET)
    yield server
    if server.has_bucket(BUCKET):
        server.drop_bucket(BUCKET)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return make_log(tmp_path)


def in_s3(store: ObjectStore, path: str = f"{BUCKET}/staging") -> SparkSettings:
    """Settings with the staging location in the store."""
    return SparkSettings(master="local[2]", staging=store.uri(path))


def test_a_place_is_listed_written_read_and_removed(store: ObjectStore) -> None:
    """An S3 location is listed, written, read and removed as a local directory, including globs."""
    root = Location.parse(store.uri(f"{BUCKET}/logs"))
    for name in ("t-0", "t-1"):
        root.child(name).child("0.log").write_bytes(b"0123456789")
    assert [(entry.name, entry.is_dir) for entry in root.entries()] == [("t-0", True), ("t-1", True)]
    assert [(entry.name, entry.size) for entry in root.child("t-0").entries()] == [("0.log", 10)]
    assert [place.name for place in Location.parse(store.uri(f"{BUCKET}/logs/t-*")).expand()] == ["t-0", "t-1"]
    with closing(root.child("t-0").child("0.log").open()) as file:
        assert (file.pread(4, 8), file.size(), file.fileno()) == (b"89", 10, None)
    root.child("t-0").remove()
    assert store.keys(BUCKET) == ["logs/t-1/0.log"]
    assert root.child("t-0").find() is None
    with pytest.raises(FileNotFoundError):
        root.child("t-0").child("0.log").open()


def test_a_log_directory_is_read_where_it_lies(store: ObjectStore, log: Log) -> None:
    """The reader's rows, by the directory of the log and by that of the partition, are those of the local files."""
    store.copy_in(Path(log.path).parent, f"{BUCKET}/logs")
    expected = read(log.path, columns=",".join(COLUMNS)).rows
    assert len(expected) == 1500
    for path in (f"{BUCKET}/logs", f"{BUCKET}/logs/t-0", f"{BUCKET}/l*/t-*"):
        assert read(store.uri(path), columns=",".join(COLUMNS)).rows == expected


def test_spark_reads_a_log_directory_where_it_lies(spark: SparkSession, store: ObjectStore, log: Log) -> None:
    """Workers get address and credentials with the path. The credentials are in no column and no plan."""
    store.copy_in(Path(log.path).parent, f"{BUCKET}/logs")
    frame = read_log(spark, store.uri(f"{BUCKET}/logs"), columns=[*COLUMNS, "segment"]).where("offset >= 700")
    local = read_log(spark, log.path, columns=COLUMNS).where("offset >= 700")
    found = frame.orderBy("offset").collect()
    assert [row[: len(COLUMNS)] for row in found] == [tuple(row) for row in local.orderBy("offset").collect()]
    assert len(found) == 800
    assert {row["segment"].rpartition("/")[0] for row in found} == {f"s3://{BUCKET}/logs/t-0"}
    assert SECRET not in str([found, frame._jdf.queryExecution().toString()])


@pytest.mark.parametrize("whole_bytes", [-1, 1 << 30], ids=["divided", "whole"])
async def test_spark_cleans_by_way_of_the_store(
    spark: SparkSession, store: ObjectStore, log: Log, tmp_path: Path, whole_bytes: int
) -> None:
    """Executors see only the store. The files equal those of a local round, and nothing is left in the store."""
    other = make_log(tmp_path / "other")
    inline = InlineRunner(other.env)
    await inline.run(plan_of(other), on_output=Swapper(other))
    await inline.close()
    seen: list[set[str]] = []
    outputs = []

    def on_output(output: object) -> None:
        seen.append({key.split("/")[2].partition("-")[0] for key in store.keys(BUCKET)})
        outputs.append(output)

    engine = session_engine(spark.sparkContext, in_s3(store).staging, whole_bytes=whole_bytes)
    engine(log.env, plan_of(log), on_output)
    assert len(outputs) > 2
    assert all("segments" in kinds and len(kinds) > 1 for kinds in seen), seen
    swap = Swapper(log)
    for output in outputs:
        await swap(output)  # type: ignore[arg-type]
    assert segment_files(log) == segment_files(other)
    assert store.keys(BUCKET) == []


async def test_the_runner_stages_in_the_store(store: ObjectStore, log: Log, tmp_path: Path) -> None:
    """Segments are copied there, outputs are brought back and verified; the bucket is empty afterwards."""
    runner = SparkRunner(log.env, in_s3(store), program=FAKE)
    await check_result(log, runner, tmp_path)
    assert store.keys(BUCKET) == []
    await runner.close()


def put(place: Location) -> None:
    """Leave an output, as a job that is killed does."""
    place.child("00000000-1").child("00000000000000000000.log.cleaned").write_bytes(b"values")


def of_another_run(plan: CleanPlan, log: Log, uri: str) -> Location:
    """Return the place of a job of an earlier process at the partition."""
    return new_place(log.env, plan, uri, run="0" * 8)


async def test_without_its_bucket_a_local_runner_takes_over(store: ObjectStore, log: Log) -> None:
    """The error has the place but no credentials. The local round succeeds, and no files are left."""
    settings = in_s3(store)
    store.drop_bucket(BUCKET)
    before = segment_files(log)
    alone = SparkRunner(log.env, settings, program=FAKE)
    with pytest.raises(SparkError, match=r"(?i)no.?such.?bucket") as raised:
        await alone.run(plan_of(log), on_output=Swapper(log))
    assert BUCKET in str(raised.value)
    assert SECRET not in str(raised.value)
    check_untouched(log, before)
    assert alone.rests_for_s > 0
    await alone.close()
    inline = InlineRunner(log.env)
    runner = SparkRunner(log.env, settings, inline, program=FAKE)
    assert (await runner.run(plan_of(log), on_output=Swapper(log))).runner == "inline"
    assert not leftovers(log)
    assert SECRET not in str(runner.last_failure)
    await runner.close()
    await inline.close()


def test_a_scan_is_told_what_lies_in_the_store(store: ObjectStore, log: Log) -> None:
    """It gets the places and their owners, nothing before the first place, and the error of a failed listing without secrets."""
    settings = in_s3(store)
    directory = os.path.dirname(log.path)
    place = staging_place(log.env, directory, settings.staging, [(log.topic, log.partition)])
    assert (place.root, place.list_names(bool)) == (None, [])
    mine = of_another_run(plan_of(log), log, settings.staging)
    put(mine)
    assert place.list_names(bool) == [mine.name]
    assert mine.name.startswith(place.owner)
    assert place.partition_of(mine.name) == (log.topic, log.partition)
    assert staging_place(log.env, directory, settings.staging, []).partition_of(mine.name) is None
    wrong = store.uri(f"{BUCKET}/staging", endpoint_override="127.0.0.1:1", request_timeout="1", connect_timeout="1")
    unreached = staging_place(log.env, directory, wrong, [])
    with pytest.raises(StorageError) as raised:
        unreached.list_names(bool)
    assert SECRET not in str(raised.value) + unreached.shown
