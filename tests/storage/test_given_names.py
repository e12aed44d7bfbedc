"""The names that the broker gives: every file of a broker's directory has one."""

from __future__ import annotations

from pathlib import Path

import pytest

from diamant.cleaner.evidence.certificates.files import certificate_path
from diamant.cleaner.facts.facts_file import facts_path
from diamant.cleaner.spark.clean.staging import new_name
from diamant.storage import names
from diamant.storage.certificate_states import KEY_GONE, NOT_CERTIFIED, NOTHING_MATCHED, RECORDS_GONE, VALUES_GONE
from diamant.storage.given_names import is_given_at_the_top, is_given_in_a_partition, is_given_to_a_partition
from tests.broker.erasure.brokers import broker_at, data_of, move_to
from tests.broker.erasure.constants import KEY, PERSON, START_MS
from tests.broker.erasure.records import create, fill, write


def is_given(name: str) -> bool:
    """Whether a name below a log directory is one that the broker gives."""
    directory, slash, rest = name.partition("/")
    return is_given_to_a_partition(directory) and is_given_in_a_partition(rest) if slash else is_given_at_the_top(name)


async def test_every_file_of_a_broker_has_a_given_name(tmp_path: Path) -> None:
    """While it runs and after its stop, with certificates of all kinds, closed segments, and what a job leaves behind."""
    found: set[str] = set()

    def note() -> None:
        found.update(
            str(path.relative_to(tmp_path / "data")) for path in (tmp_path / "data").rglob("*") if path.is_file()
        )

    async with broker_at(tmp_path) as broker:
        await create(broker)
        write(broker, (KEY, PERSON), (b"a", b"b"))
        fill(broker)
        note()
        (data_of(broker) / "dump").write_bytes(PERSON)
        asked = await broker.erase(KEY, ["users"], reason="r")
        note()
        await broker.cancel(asked.id, reason="r")
        await broker.redact("users", where='key == "a"', reason="r")
        await broker.redact("users", where='key == "nobody"', reason="r")
        (data_of(broker) / "dump").unlink()
        await broker.erase(KEY, ["users"], reason="r")
        move_to(broker, START_MS + 1000)
        note()
    note()
    assert sorted(name for name in found if not is_given(name) and name != "dump") == []
    assert any(name.endswith(names.REMAINS_SUFFIX) for name in found)


@pytest.mark.parametrize("state", [VALUES_GONE, KEY_GONE, RECORDS_GONE, NOTHING_MATCHED, NOT_CERTIFIED])
@pytest.mark.parametrize("suffix", ["", names.PENDING_SUFFIX, f"{names.PENDING_SUFFIX}.tmp"])
def test_certificates_of_all_states_have_given_names(state: str, suffix: str) -> None:
    """Certificates of all states have such names, also before they are complete."""
    assert is_given(Path(certificate_path("", "0" * 32, state) + suffix).name)


def test_names_of_rare_files_are_given() -> None:
    """The names are made by the functions that name these files."""
    rare = [
        names.log_file("users-0", 7) + names.CLEANED_SUFFIX,
        names.snapshot_file("users-0", 7) + names.DELETED_SUFFIX,
        names.metadata_snapshot_file("__cluster_metadata-0", 7, 1),
        f"__cluster_metadata-0/{7:020d}-{1:010d}-{'0f' * 16}.checkpoint.part",
        f"{names.delete_dir_name('users', 0)}/{names.PARTITION_METADATA}",
        f"{names.stray_dir_name('users', 0)}/{names.LEADER_EPOCH_CHECKPOINT}.tmp",
        facts_path("users-0", 7),
        f"users-0/{new_name(f'{names.STAGING_PREFIX}{7:016x}-', 'users-0')}/00000000-1/{7:020d}.log.cleaned",
        f"{new_name(f'{names.STAGING_PREFIX}{7:016x}-', 'users-0')}{names.NOTE_SUFFIX}",
        f"{names.META_PROPERTIES}.tmp",
    ]
    assert [name for name in rare if not is_given(name)] == []
