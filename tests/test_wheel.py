"""The wheel in an environment of its own: the guides' examples for pytest, right after installation."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.documentation.docker_image import NO_INDEX

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("pyproject.toml", "README.md", "LICENSE")
PAGES = ("docs/how-to/testing.md", "docs/how-to/faults.md", "docs/how-to/clock.md")
ONE_FILE = "docs/how-to/test-your-compaction.md"
RUNS = 5
EVERY_TIME = "docs/how-to/clock.md"
"""With `ONE_FILE` the page whose examples import the most in threads: after the first run, only these are repeated."""

NEVER_REWRITTEN = """
import sys
import pytest

@pytest.mark.parametrize("number", range(4))
def test_our_modules_are_plain(number, diamant_broker):
    ours = [module for name, module in sys.modules.items() if name.startswith("diamant.")]
    assert len(ours) > 50
    rewritten = [one.__name__ for one in ours if type(one.__loader__).__name__ != "SourceFileLoader"]
    assert rewritten == ["diamant.plain_imports"]  # which ends it
"""


def pip(*arguments: str | Path) -> None:
    """Run pip; skip the test where there is no package index."""
    run = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=600,
    )  # fmt: skip
    if run.returncode and NO_INDEX.search(run.stdout):
        pytest.skip(f"pip cannot reach a package index: {run.stdout.strip().splitlines()[-1]}")
    assert run.returncode == 0, run.stdout


def build_wheel(place: Path) -> Path:
    """The wheel, built from a copy, for building leaves files."""
    source = place / "source"
    shutil.copytree(ROOT / "diamant", source / "diamant", ignore=shutil.ignore_patterns("__pycache__"))
    for name in SOURCES:
        shutil.copy(ROOT / name, source)
    pip("wheel", "--no-deps", "--wheel-dir", place, source)
    (wheel,) = place.glob("*.whl")
    return wheel


def install(wheel: Path, place: Path) -> Path:
    """The interpreter of a new environment that has the wheel, and links to all packages of this one but its Diamant."""
    venv.create(place, symlinks=True)
    (packages,) = place.glob("lib/python*/site-packages")
    for path in map(Path, sys.path):
        if path.name != "site-packages":
            continue
        for found in path.iterdir():
            link = packages / found.name
            if "diamant" not in found.name and found.suffix != ".pth" and not link.exists():
                link.symlink_to(found)
    python = place / "bin" / "python"
    pip("--python", python, "install", "--no-deps", "--no-index", "--no-compile", wheel)
    return python


def examples(page: str) -> list[str]:
    """The Python blocks of a page."""
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.slow
def test_the_examples_for_pytest_pass_as_installed(tmp_path: Path) -> None:
    """Time after time, with four workers, nothing in any cache and no byte code of ours: what is imported late, in threads, is
    never rewritten by pytest. Ten seconds of one core each.
    """
    python = install(build_wheel(tmp_path), tmp_path / "environment")
    for number in range(RUNS):
        place = tmp_path / f"run-{number}"
        place.mkdir()
        tests = [NEVER_REWRITTEN, "\n\n".join(examples(ONE_FILE))]
        tests += [text for page in PAGES if page == EVERY_TIME or number == 0 for text in examples(page)]
        expected = sum(text.count("def test_") for text in tests) + 3  # four rows
        assert expected == (10 if number else 17)
        for index, text in enumerate(tests):
            (place / f"test_example_{index}.py").write_text(text)
        (place / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n")
        run = subprocess.run(
            [python, "-m", "pytest", "-q", "-n", "4", "-p", "no:cacheprovider", "."],
            cwd=place,
            env={"PATH": os.environ["PATH"], "HOME": str(place), "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True, text=True, check=False, timeout=800,
        )  # fmt: skip
        assert run.returncode == 0, run.stdout + run.stderr
        assert f"{expected} passed" in run.stdout
