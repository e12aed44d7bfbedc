"""Pipes, devices and huge sparse files that have the names of the broker's own files: nothing hangs, nothing fills the memory."""

from __future__ import annotations

import ast
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from diamant.broker.cannot_start import CannotStart
from diamant.cleaner.evidence.certificates.files import list_certificates
from diamant.storage import names
from diamant.storage.certificate_states import NOT_CERTIFIED
from diamant.storage.env.env import RealEnv
from tests.broker.erasure.brokers import broker_at, data_of
from tests.broker.erasure.constants import KEY
from tests.broker.erasure.erasing import erase
from tests.broker.erasure.records import create_with_key

HUGE_BYTES = 40 << 30
ROOT = Path(__file__).parent.parent.parent


def pipe(path: Path) -> None:
    """A pipe that nobody writes to."""
    os.mkfifo(path)


def device(path: Path) -> None:
    """A link to a device without an end."""
    path.symlink_to("/dev/zero")


def sparse(path: Path) -> None:
    """A file of 40 GB that takes no space."""
    with path.open("wb") as file:
        file.truncate(HUGE_BYTES)


ODD = pytest.mark.parametrize("odd", [pipe, device, sparse])
Odd = Callable[[Path], None]

CERTIFICATE = f"diamant-erasure-{'ab' * 16}.key-gone.json"
JOB_FILES = [
    CERTIFICATE,
    f"diamant-redaction-{'ab' * 16}.records-gone.json",
    f"diamant-erasure-{'ab' * 16}.intent",
    f"diamant-redaction-{'ab' * 16}.intent",
    f"diamant-erasure-{'ab' * 16}.remains",
]


@ODD
async def test_certificates_are_listed_beside_one_that_is_none(tmp_path: Path, odd: Odd) -> None:
    """The list says that it cannot be read; asking for it is answered, and says why."""
    async with broker_at(tmp_path) as broker:
        await create_with_key(broker)
        asked = await erase(broker, now=True)
        odd(data_of(broker) / CERTIFICATE)
        found = {one["id"]: one["check"] for one in await broker.services.certificates().list_all()}
        assert found[asked.id] == "signed"
        assert found["ab" * 16] == "it cannot be read as a certificate"
        with pytest.raises(Exception, match="its last certificate cannot be read"):
            await broker.services.certificates().last("ab" * 16)


@ODD
@pytest.mark.parametrize("name", JOB_FILES)
async def test_jobs_begin_and_resume_beside_odd_files(tmp_path: Path, odd: Odd, name: str) -> None:
    """The broker starts, an erasure is answered, and nothing is certified beside a pipe or a device, which cannot be searched."""
    async with broker_at(tmp_path) as broker:
        await create_with_key(broker)
        await broker.services.evidence().keys.key()
        odd(data_of(broker) / name)
    async with broker_at(tmp_path) as broker:
        asked = await erase(broker)
        assert asked.state == ("values-gone" if odd is sparse and name.endswith(".json") else NOT_CERTIFIED)


TOP = [one for one in names.DIRECTORY_FILES if one not in (names.LOCK, names.MANUAL_CLOCK)]
IN_PARTITION = [
    names.LEADER_EPOCH_CHECKPOINT,
    names.PARTITION_METADATA,
    f"{0:020d}.log",
    f"{0:020d}.index",
    f"{0:020d}.timeindex",
    f"{0:020d}.txnindex",
    f"{3:020d}.snapshot",
    f"diamant-{0:020d}.facts",
]
PLACES = [
    *TOP,
    names.LOCK,
    *(f"users-0/{name}" for name in IN_PARTITION),
    *(
        f"__cluster_metadata-0/{name}"
        for name in (names.QUORUM_STATE, f"{0:020d}.log", f"{0:020d}-{0:010d}.checkpoint")
    ),
]


@ODD
@pytest.mark.parametrize("place", [*PLACES, *(f"{one}.tmp" for one in PLACES)])
async def test_a_start_never_hangs_on_an_odd_file(tmp_path: Path, odd: Odd, place: str) -> None:
    """The broker serves, or names the file that it cannot read; it reads no more than the limit of such files."""
    async with broker_at(tmp_path) as broker:
        await create_with_key(broker)
    path = tmp_path / "data" / place
    path.unlink(missing_ok=True)
    odd(path)
    refused = ""
    try:
        async with broker_at(tmp_path) as broker:
            assert await broker.services.certificates().list_all() == []
    except CannotStart as error:
        refused = str(error)
    assert not refused or path.name.removesuffix(".tmp") in refused or "/dev/zero" in refused


@ODD
async def test_a_scan_does_not_read_holes(tmp_path: Path, odd: Odd) -> None:
    """A file of another name is searched as bytes if it is one; a huge one without content takes no time."""
    async with broker_at(tmp_path) as broker:
        await create_with_key(broker)
        odd(data_of(broker) / "notes")
        asked = await erase(broker)
        assert asked.state == ("values-gone" if odd is sparse else NOT_CERTIFIED)


OTHERWISE = {
    "cleaner/evidence/certificates/key_location.py": "the system's table of mounts",
    "cleaner/evidence/certificates/signing_key.py": "makes a new file, outside of the data directory",
    "cleaner/queries/key_counts.py": "temporary files of its own",
    "cleaner/runners/child_priority.py": "files of the system",
    "cleaner/runners/worker.py": "a directory",
    "storage/env/env.py": "a directory, to sync it",
    "storage/input_file.py": "`open_regular` itself",
}
"""What opens files in another way than by `open_regular`, and why it may."""
OPENING = ("read_text", "write_text", "write_bytes")


def opens(node: ast.AST) -> bool:
    """Whether code opens a file by its name, except through an `Env`."""
    if not isinstance(node, ast.Call):
        return False
    called = node.func
    if isinstance(called, ast.Name):
        return called.id == "open"
    is_os = isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and called.value.id == "os"
    return isinstance(called, ast.Attribute) and ((is_os and called.attr == "open") or called.attr in OPENING)


def test_files_of_a_data_directory_are_opened_by_one_function() -> None:
    """`open_regular` refuses anything but a regular file, and never blocks. Other ways to open files are listed here."""
    found = set()
    for folder in ("storage", "cleaner", "broker/erasure", "broker/snapshots", "broker/operations/records"):
        for path in sorted((ROOT / "diamant" / folder).rglob("*.py")):
            if "spark" not in path.parts and any(map(opens, ast.walk(ast.parse(path.read_text())))):
                found.add(str(path.relative_to(ROOT / "diamant")))
    assert found == OTHERWISE.keys()


def test_certificates_of_a_directory_are_those_with_their_names(tmp_path: Path) -> None:
    """Files that only begin alike are no certificates."""
    for name in (CERTIFICATE, "diamant-erasure-x.key-gone.json", f"diamant-erasure-{'ab' * 16}.{KEY.decode()}.json"):
        (tmp_path / name).touch()
    assert [one["id"] for one in list_certificates(RealEnv(), str(tmp_path))] == ["ab" * 16]
