"""Rewrites a closed segment, removing or replacing some of its records; offsets, sequences and transactions are kept.

Used for removing tombstones before their horizon, and for redactions. If no records of a batch remain, its header is kept, as in
compaction, so that offsets, producers and transactions can be recovered from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from diamant.cleaner.rules.result import OutputSegment
from diamant.cleaner.segments.rebuilt_batch import emptied_batch, rebuilt_batch
from diamant.cleaner.segments.segment_writer import SegmentWriter
from diamant.cleaner.segments.strict_reader import read_chunks
from diamant.protocol.batches.header import BatchHeader, Record
from diamant.storage import names
from diamant.storage.env.env import Env
from diamant.storage.segments.txn_index import AbortedTxn

READ_BYTES = 1024 * 1024


def write_changed(
    env: Env,
    directory: str,
    base_offset: int,
    size: int,
    aborted: Sequence[AbortedTxn],
    changed: Callable[[Record], Record | None],
    *,
    touches: Callable[[BatchHeader], bool] = lambda _header: True,
    index_interval_bytes: int,
    segment_index_bytes: int,
) -> OutputSegment | None:
    """Write and sync the `.cleaned` files of the segment at `base_offset`, with the records that `changed` returns. Blocking.

    `changed` returns None to remove a record. Batches for which `touches` returns False are copied without reading their records.
    If no record changes, return None and leave no files. Raises CorruptLog for unreadable data. No files are left after an error.
    """
    path = names.log_file(directory, base_offset)
    writer = SegmentWriter(
        env,
        directory,
        base_offset,
        index_interval_bytes=index_interval_bytes,
        segment_index_bytes=segment_index_bytes,
    )
    count = 0
    file = env.open(path, read_only=True)
    try:
        for chunk in read_chunks(file, 0, size, READ_BYTES):
            for batch in chunk.batches():
                header = batch.header
                batch.check()
                records = [] if header.is_control or not touches(header) else list(batch.iter_records())
                new_records = [changed(record) for record in records]
                kept = [record for record in new_records if record is not None]
                changes = sum(new is not old for new, old in zip(new_records, records, strict=True))
                count += changes
                if not changes:
                    writer.append(batch.view(), header.last_offset, header.max_timestamp)
                    continue
                new = rebuilt_batch(header, kept, None) if kept else emptied_batch(header)
                writer.append(new, header.last_offset, header.max_timestamp)
        for txn in aborted:
            writer.add_aborted(txn)
        if not count:
            writer.abandon()
            return None
        output = writer.finish(env.mtime_ms(path), (base_offset,))
        for cleaned in names.segment_paths(directory, base_offset, names.CLEANED_SUFFIX):
            if env.exists(cleaned):
                env.sync_file(cleaned)
        return output
    except BaseException:
        writer.abandon()
        raise
    finally:
        file.close()
