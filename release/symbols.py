"""The symbols of the modules in a wheel, against its tags.

A wheel for manylinux_2_17 needs no C library newer than 2.17, one for musl nothing that musl lacks, one for cp311 and abi3
nothing of CPython but the stable ABI of 3.11. None needs another library.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

from abi3info import DATAS, FUNCTIONS
from elftools.elf.elffile import ELFFile

MACHINES = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}
LIBRARIES = {"manylinux": {"libc.so.6", "ld-linux-aarch64.so.1"}, "musllinux": {"libc.so"}}
MUSL = Path("/lib/ld-musl-x86_64.so.1")
"""From Debian's package `musl`. Its names are those of every processor."""
WEAK = {"__cxa_finalize", "__gmon_start__", "_ITM_deregisterTMCloneTable", "_ITM_registerTMCloneTable"}
STABLE = {
    one.symbol.name for one in (*FUNCTIONS.values(), *DATAS.values()) if (one.added.major, one.added.minor) <= (3, 11)
}


class Module(NamedTuple):
    """An extension module: its processor, and all that it needs."""

    name: str
    machine: str
    libraries: set[str]
    missing: set[str]
    """Symbols that others must have."""
    versions: set[str]
    """Versions of symbols, `GLIBC_2.17`."""


def modules_in(wheel: Path) -> Iterator[Module]:
    """Read each."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith(".so"):
                elf = ELFFile(BytesIO(archive.read(name)))
                symbols = elf.get_section_by_name(".dynsym").iter_symbols()
                needed = elf.get_section_by_name(".gnu.version_r")
                yield Module(
                    name,
                    elf["e_machine"],
                    {tag.needed for tag in elf.get_section_by_name(".dynamic").iter_tags("DT_NEEDED")},
                    {symbol.name for symbol in symbols if symbol["st_shndx"] == "SHN_UNDEF" and symbol.name},
                    {one.name for _, all_of in needed.iter_versions() for one in all_of} if needed else set(),
                )


def names_of_musl() -> set[str] | None:
    """Return the symbols of musl; None where it is not at hand."""
    if not MUSL.exists():
        return None
    with MUSL.open("rb") as file:
        return {symbol.name for symbol in ELFFile(file).get_section_by_name(".dynsym").iter_symbols()}


def faults_of(wheel: Path) -> list[str]:
    """Return the promises of a wheel's tags that its modules break."""
    _, _, python, abi, platform = wheel.stem.split("-")
    libc, oldest, machine = re.fullmatch(r"(many|musl)linux_(\d+_\d+)_(\w+)", platform.partition(".")[0]).groups()
    faults = [] if (python, abi) == ("cp311", "abi3") else [f"tagged {python}-{abi}, expected cp311-abi3"]
    greatest = tuple(map(int, oldest.split("_")))
    musl = names_of_musl() if libc == "musl" else None
    found = list(modules_in(wheel))
    if not found:
        faults.append("no extension module")
    for module in found:
        said = []
        if module.machine != MACHINES[machine]:
            said.append(f"is for {module.machine}")
        if others := module.libraries - LIBRARIES[f"{libc}linux"]:
            said.append(f"needs the libraries {others}")
        if late := {one for one in module.versions if tuple(map(int, re.findall(r"\d+", one)))[:2] > greatest}:
            said.append(f"needs symbols of {late}")
        ours = {name for name in module.missing if re.match(r"_?Py", name)}
        if unstable := ours - STABLE:
            said.append(f"needs {unstable}, which the stable ABI of 3.11 lacks")
        if musl is not None and (lacking := module.missing - ours - WEAK - musl):
            said.append(f"needs {lacking}, which musl lacks")
        faults += [f"{module.name} {one}" for one in said]
    return faults
