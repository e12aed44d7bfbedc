"""`stable_abi.h` and Python's own headers."""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

from tests.waiting import PATIENCE_S

HEADER = Path(__file__).resolve().parents[2] / "diamant" / "kernels" / "stable_abi.h"
OWN_HEADERS = sysconfig.get_path("include")
NEEDS_HEADERS = pytest.mark.skipif(
    shutil.which("cc") is None or not Path(OWN_HEADERS, "Python.h").exists(), reason="needs a compiler and Python.h"
)


def compile_as_limited(source: Path, *options: str | Path) -> None:
    """Compile a source that sees the limited API of 3.11."""
    subprocess.run(["cc", "-Werror", "-DPy_LIMITED_API=0x030B0000", source, *options], check=True, timeout=60)


def layout_of(text: str) -> list[str]:
    """Expressions of C that tell the constants and the layout of the structures of a header."""
    constants = re.findall(
        r"^#define ((?:METH|PyBUF|Py|PY|SIZEOF|READONLY|T)_?\w*) (?:[-\d(~S])(?!&|\(Py)", text, re.MULTILINE
    )
    found = [name for name in constants if not name.startswith(("PY_M", "PY_V"))]
    for body, name in re.findall(r"^typedef struct \w*\s*\{\n(.*?)^\} (\w+);", text, re.DOTALL | re.MULTILINE):
        found.append(f"sizeof({name})")
        for line in body.splitlines():
            line = re.sub(r"\(\*(\w+)\)\(.*\)", r"\1", line)
            found += [f"offsetof({name}, {field})" for field in re.findall(r"(\w+)(?=[,;])", line)]
    return found


@NEEDS_HEADERS
def test_declared_functions_match_pythons_headers(tmp_path: Path) -> None:
    """A declaration that differs from Python's is one that the compiler refuses beside it."""
    text = HEADER.read_text()
    declared = re.findall(r"^(?!typedef|static|#| ).*\b_?Py\w+\(.*\).*;$", text, re.MULTILINE)
    assert len(declared) > 150
    data = re.findall(r"^extern [^;]*;", text, re.DOTALL | re.MULTILINE)
    source = tmp_path / "declared.c"
    source.write_text("\n".join(["#include <Python.h>", "#include <pythread.h>", *declared, *data]))
    compile_as_limited(source, "-fsyntax-only", f"-I{OWN_HEADERS}")


@NEEDS_HEADERS
def test_constants_and_structures_match_pythons_headers(tmp_path: Path) -> None:
    """A program that prints them all says the same with either."""
    wanted = layout_of(HEADER.read_text())
    assert len(wanted) > 120
    lines = "\n".join(f'    printf("%s %lld\\n", "{one}", (long long)({one}));' for one in wanted)
    for name in ("Python", "structmember"):
        shutil.copy(HEADER, tmp_path / f"{name}.h")
    source = tmp_path / "printed.c"
    start = "#include <Python.h>\n#include <structmember.h>\n#include <stddef.h>\n#include <stdio.h>\n"
    source.write_text(f"{start}int main(void) {{\n{lines}\n    return 0;\n}}\n")
    printed = []
    for place in (tmp_path, OWN_HEADERS):
        program = tmp_path / "program"
        compile_as_limited(source, f"-I{place}", "-o", program)
        printed.append(subprocess.run([program], capture_output=True, text=True, check=True, timeout=PATIENCE_S).stdout)
    assert printed[0] == printed[1]
