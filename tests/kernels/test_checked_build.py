"""The flags of `make sanitize`."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

SETUP = Path(__file__).parents[2] / "setup.py"
PROGRAM = r"""
#include <stdint.h>
#include <stdlib.h>
int main(int count, char **words) { volatile int64_t offset = INT64_MAX; return (int)((offset + count) >> 63) + 1; }
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_a_sum_that_overflows_ends_the_process(tmp_path: Path) -> None:
    """Python's flags, which come first, let sums wrap around; those of the checked build take that back."""
    tree = ast.parse(SETUP.read_text())
    [checked] = [
        one.value for one in tree.body if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == "CHECKED"
    ]
    flags = [*(sysconfig.get_config_var("CFLAGS") or "").split(), "-O1", *ast.literal_eval(checked)]
    (tmp_path / "sum.c").write_text(PROGRAM)
    subprocess.run(["gcc", "sum.c", "-o", "sum", *flags], cwd=tmp_path, check=True)
    done = subprocess.run([tmp_path / "sum"], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "signed integer overflow" in done.stderr
