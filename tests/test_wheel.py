"""The wheel in an environment of its own: the guides' examples for pytest, right after installation."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.building import pip
from tests.pythons import SUPPORTED, candidates, find

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("MANIFEST.in", "pyproject.toml", "setup.py", "README.md", "LICENSE")
PAGES = ("docs/how-to/testing.md", "docs/how-to/faults.md", "docs/how-to/clock.md")
ONE_FILE = "docs/how-to/test-your-compaction.md"
RUNS, LONG_RUNS = 1, 5
WORKERS, LONG_WORKERS = 2, 4
EVERY_TIME = "docs/how-to/clock.md"
"""With `ONE_FILE` the page whose examples import the most in threads: after the first run, only these are repeated."""

OTHER_VERSIONS = SUPPORTED[1:]
TEST_TOOLS = ("aiokafka", "confluent-kafka", "kafka-python", "pytest", "pytest-asyncio", "pytest-xdist")
"""What the examples need beside Diamant, in the versions of requirements-dev.txt."""

NEVER_REWRITTEN = """
import sys
import pytest

@pytest.mark.parametrize("number", range(4))
def test_our_modules_are_plain(number, diamant_broker):
    ours = [module for name, module in sys.modules.items() if name.startswith("diamant.")]
    assert len(ours) > 50
    plain = ("SourceFileLoader", "ExtensionFileLoader")
    rewritten = [one.__name__ for one in ours if type(one.__loader__).__name__ not in plain]
    assert rewritten == ["diamant.plain_imports"]  # which ends it
"""


class Sources(NamedTuple):
    """A copy of the sources, for building leaves files, and the tools that a build requires: it has no other packages."""

    place: Path
    tools: Path

    def build(self, what: str, place: Path, **environment: str) -> Path:
        """Build an `sdist` or a `wheel`."""
        build = f"import sys; from setuptools import build_meta; build_meta.build_{what}(sys.argv[1])"
        variables = os.environ | {"PYTHONPATH": str(self.tools)} | environment
        subprocess.run(
            [sys.executable, "-S", "-c", build, place], cwd=self.place, env=variables, check=True, timeout=300
        )
        (found,) = place.glob({"sdist": "*.tar.gz", "wheel": "*.whl"}[what])
        return found


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory, build_tools: Path) -> Sources:
    """What git has."""
    copied = Sources(tmp_path_factory.mktemp("source"), build_tools)
    unversioned = shutil.ignore_patterns("__pycache__", "*.so")
    shutil.copytree(ROOT / "diamant", copied.place / "diamant", ignore=unversioned)
    for written in (copied.place / "diamant" / "kernels" / "constants").glob("*.pxd"):
        written.unlink()
    for name in SOURCES:
        shutil.copy(ROOT / name, copied.place)
    return copied


def kernels_in(wheel: Path) -> set[str]:
    """Return the names of the extension modules in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return {Path(name).name.partition(".")[0] for name in archive.namelist() if name.endswith(".so")}


def install(wheel: Path, place: Path) -> Path:
    """Return the interpreter of a new environment that has the wheel, and links to all packages of this one but its Diamant."""
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
    """Return the Python blocks of a page."""
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)


NEWEST = max(
    (version for version in OTHER_VERSIONS if [*candidates([version])]),
    key=OTHER_VERSIONS.index,
    default=OTHER_VERSIONS[-1],
)
"""The newest at hand; the others are tried with --long."""


def find_python(version: str) -> str:
    """Return the interpreter of a version of CPython; skip the test where there is none."""
    found = find([version])
    if not found:
        pytest.skip(f"no CPython {version} on PATH or among those of pyenv")
    return found[-1].program


def install_anew(wheel: Path, place: Path, version: str) -> Path:
    """Return the interpreter of a clean environment of a version of CPython, with the wheel, what it requires, and the tools."""
    subprocess.run([find_python(version), "-m", "venv", "--without-pip", place], check=True, timeout=60)
    pins = (ROOT / "requirements-dev.txt").read_text().splitlines()
    tools = [pin for pin in pins if pin.partition("==")[0] in TEST_TOOLS]
    assert len(tools) == len(TEST_TOOLS)
    python = place / "bin" / "python"
    pip("--python", python, "install", "--no-compile", wheel, *tools)
    return python


def run_examples(python: Path, place: Path, *, is_first: bool, workers: int = WORKERS, **variables: str) -> None:
    """Run the guides' examples with some workers and an empty cache; those of `EVERY_TIME` and `ONE_FILE` if not the first."""
    place.mkdir()
    tests = [NEVER_REWRITTEN, "\n\n".join(examples(ONE_FILE))]
    tests += [text for page in PAGES if page == EVERY_TIME or is_first for text in examples(page)]
    expected = sum(text.count("def test_") for text in tests) + 3  # of the four rows
    assert expected == (20 if is_first else 10)
    for index, text in enumerate(tests):
        (place / f"test_example_{index}.py").write_text(text)
    (place / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n")
    run = subprocess.run(
        [python, "-m", "pytest", "-q", "-n", str(workers), "-p", "no:cacheprovider", "."],
        cwd=place,
        env={"PATH": os.environ["PATH"], "HOME": str(place), "LANG": "C.UTF-8"} | variables,
        capture_output=True, text=True, check=False, timeout=800,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"{expected} passed" in run.stdout


def write_compiler(path: Path, script: str) -> str:
    """Write a program that stands in for a compiler, and return its name."""
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture(scope="module")
def wheel(sources: Sources, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built of the source distribution; one serves every version of CPython.

    Compiled as quickly as can be: this checkout's own kernels, with which all other tests run, are optimized. The source
    distribution is made without Cython, which would write the same C twice.
    """
    place = tmp_path_factory.mktemp("wheel")
    archive = sources.build("sdist", place, DIAMANT_KERNELS="none")
    subprocess.run(["tar", "-xf", archive, "-C", place], check=True, timeout=60)
    (unpacked,) = place.glob("diamant*/")
    quick = {"CC": write_compiler(place / "cc", 'exec cc "$@" -O0')} if shutil.which("cc") else {}
    return sources._replace(place=unpacked).build("wheel", place, **quick)


@pytest.mark.slow
def test_the_examples_for_pytest_pass_as_installed(wheel: Path, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """With nothing in any cache and no byte code of ours, modules that are imported late, in threads, are never rewritten by
    pytest. With --long time after time, and with more workers than processors.
    """
    assert kernels_in(wheel) == {"compiled"}
    python = install(wheel, tmp_path / "environment")
    runs, workers = (LONG_RUNS, LONG_WORKERS) if pytestconfig.getoption("--long") else (RUNS, WORKERS)
    for number in range(runs):
        place = tmp_path / f"run-{number}"
        run_examples(python, place, is_first=number == 0, workers=workers, PYTHONDONTWRITEBYTECODE="1")


@pytest.mark.slow
@pytest.mark.parametrize(
    "version", [pytest.param(one, marks=[] if one == NEWEST else pytest.mark.long) for one in OTHER_VERSIONS]
)
def test_the_examples_pass_on_other_versions_of_python(wheel: Path, tmp_path: Path, version: str) -> None:
    """The same wheel works in a clean environment of each CPython at hand, with only the packages that pip installs there."""
    run_examples(install_anew(wheel, tmp_path / "environment", version), tmp_path / "run", is_first=True)


def with_two_kernels(sources: Sources, place: Path) -> Sources:
    """Return a copy that is built quickly."""
    copied = sources._replace(place=shutil.copytree(sources.place, place))
    for kernel in (copied.place / "diamant" / "kernels").glob("[!_]*.py"):
        if kernel.stem not in ("record_walk", "sizing"):
            kernel.unlink()
    return copied


@pytest.mark.slow
def test_a_kernel_that_cannot_be_compiled_ends_the_build(
    sources: Sources, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The error says what to do. An installation without kernels is one that was asked for."""
    copied = with_two_kernels(sources, tmp_path / "source")
    compiler = write_compiler(tmp_path / "compiler", "exit 1")
    with pytest.raises(subprocess.CalledProcessError):
        copied.build("wheel", tmp_path, CC=compiler)
    told = capfd.readouterr().err
    assert "Diamant's kernels cannot be compiled: " in told
    assert "Install a wheel for this machine, or a C compiler" in told
    assert "With DIAMANT_KERNELS=none Diamant is installed without kernels" in told
    assert not [*tmp_path.glob("*.whl")]
    assert kernels_in(copied.build("wheel", tmp_path, CC=compiler, DIAMANT_KERNELS="none")) == set()


@pytest.mark.slow
def test_a_build_requires_a_compiler_from_pypi_where_none_works(sources: Sources, tmp_path: Path) -> None:
    """A gcc without the headers of the C library does not. A compiler in CC is taken as it is; no kernels need no compiler."""
    copied = with_two_kernels(sources, tmp_path / "source")
    programs = tmp_path / "programs"
    programs.mkdir()
    bare = {"PATH": str(programs)}

    def required(**environment: str) -> str:
        asked = "from setuptools import build_meta; print(build_meta.get_requires_for_build_wheel())"
        variables = {"PYTHONPATH": str(copied.tools), **bare, **environment}
        run = subprocess.run(
            [sys.executable, "-S", "-c", asked], cwd=copied.place, env=variables, check=True, timeout=60,
            capture_output=True, text=True,
        )  # fmt: skip
        return run.stdout.splitlines()[-1]

    assert re.fullmatch(r"\['ziglang==[\d.]+'\]", required())
    for name in ("cc", "gcc", "clang", "x86_64-linux-gnu-gcc"):
        write_compiler(programs / name, "exit 1")
    assert "ziglang" in required()
    assert required(CC="cc") == required(DIAMANT_KERNELS="none") == "[]"
    if found := shutil.which("cc"):
        (programs / "clang").unlink()
        write_compiler(programs / "clang", f'PATH={os.environ["PATH"]} exec {found} "$@"')
        assert required() == "[]"


@pytest.mark.long
def test_pip_installs_kernels_where_no_compiler_is(sources: Sources, tmp_path: Path) -> None:
    """The build needs no headers of Python: those of ziglang and of Diamant serve."""
    place = tmp_path / "environment"
    venv.create(place, symlinks=True)
    python = place / "bin" / "python"
    nothing = tmp_path / "nothing"
    nothing.mkdir()
    build = with_two_kernels(sources, tmp_path / "source").place
    pip("--python", python, "install", "--no-deps", "--no-compile", build, PATH=str(nothing), HOME=str(nothing))
    asked = "import diamant.kernels; from diamant.kernels import sizing; print(diamant.kernels.ARE_COMPILED)"
    run = subprocess.run([python, "-c", asked], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout == "True\n"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["free-threaded", "pypy"])
def test_an_interpreter_without_a_stable_abi_gets_no_kernels_unasked(
    sources: Sources, tmp_path: Path, kind: str
) -> None:
    """Extension modules would not load in such an interpreter: the build ends, and says how to do without."""
    pretended = {
        "free-threaded": "import sysconfig; sysconfig.get_config_vars()['Py_GIL_DISABLED'] = 1",
        "pypy": "sys.implementation.name = 'pypy'",
    }
    build = f"import sys; {pretended[kind]}; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    run = subprocess.run(
        [sys.executable, "-S", "-c", build, tmp_path], cwd=sources.place, check=False, timeout=60, text=True,
        capture_output=True, env=os.environ | {"PYTHONPATH": str(sources.tools)},
    )  # fmt: skip
    assert run.returncode
    assert "has no stable ABI" in run.stderr
    assert "DIAMANT_KERNELS=none" in run.stderr
