"""The files of a task: what an engine's writer needs of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from diamant.cleaner.segments.segment_writer import WRITE_BACK_BYTES, SegmentWriter
from diamant.cleaner.spark.clean.task_files import TaskFiles
from diamant.cleaner.spark.environment.locations import LOCAL, Location
from tests.cleaner.facts.segment_history import SegmentHistory


@pytest.mark.parametrize("filesystem", [LOCAL, "file:///"], ids=["local", "remote"])
def test_an_output_may_be_so_large_that_the_disk_begins_to_write_it(tmp_path: Path, filesystem: str) -> None:
    """An output of any size is written with a descriptor, as for local files, and without, as for pyarrow's."""
    history = SegmentHistory()
    history.batch([(b"k", b"v")])
    history.roll()
    _, plan = history.stored()
    files = TaskFiles(plan, Location(plan.directory), Location(str(tmp_path), filesystem))
    writer = SegmentWriter(files.env, plan.directory, 0, index_interval_bytes=4096, segment_index_bytes=4096)
    content = bytes(WRITE_BACK_BYTES + 1)
    writer.append(content, last_offset=0, max_timestamp=0)
    output = writer.finish(0, (0,))
    [name] = [name for name in files.files_of(0) if ".log" in name]
    assert (output.size, (tmp_path / name).stat().st_size) == (len(content), len(content))
