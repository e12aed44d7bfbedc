"""Finding Java by the variable, the path and the usual directory, and the error if none is sufficient."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from diamant.cleaner.spark.environment.java import Java, JavaNotFound, find_java
from tests.cleaner.spark.conftest import java_home


def install(home: Path, version: str, *, has_release: bool = True) -> Path:
    """Make what looks like an installed Java."""
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "java"
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2021-01-01' >&2\n")
    program.chmod(0o755)
    if has_release:
        (home / "release").write_text(f'IMPLEMENTOR="X"\nJAVA_VERSION="{version}"\n')
    return home


def find(jvm: Path, **environ: str) -> Java:
    """Return the Java found with this environment and nothing else."""
    return find_java({"PATH": "", **environ}, str(jvm))


@pytest.mark.parametrize("has_release", [True, False])
@pytest.mark.parametrize(("version", "number"), [("17.0.15", 17), ("21", 21), ("25.0.1+9", 25)])
def test_the_version_is_found_by_file_or_by_asking(
    tmp_path: Path, version: str, number: int, has_release: bool
) -> None:
    """Not every distribution has the file that names the version."""
    home = install(tmp_path / "java", version, has_release=has_release)
    assert find(tmp_path / "none", JAVA_HOME=str(home)) == Java(str(home), number)


def test_java_home_comes_before_the_path_and_that_before_the_usual_place(tmp_path: Path) -> None:
    """In the usual place the oldest that is new enough."""
    homes = {name: install(tmp_path / "jvm" / name, f"{name}.0.1") for name in ("25", "21", "17", "11")}
    named, on_path = install(tmp_path / "named", "22"), install(tmp_path / "on-path", "23")
    path = f"{on_path}/bin"
    assert find(tmp_path / "jvm", JAVA_HOME=str(named), PATH=path).version == 22
    assert find(tmp_path / "jvm", PATH=path).version == 23
    assert find(tmp_path / "jvm") == Java(str(homes["17"]), 17)


def test_a_java_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    """A Java that is too old is passed over even if JAVA_HOME names it, as long as there is another."""
    old, new = install(tmp_path / "old", "1.8.0_412"), install(tmp_path / "jvm" / "java-17", "17.0.1")
    assert find(tmp_path / "jvm", JAVA_HOME=str(old)) == Java(str(new), 17)


def test_none_that_will_do_is_reported_with_what_was_found_and_what_to_type(tmp_path: Path) -> None:
    """The error has the version and directory of each one found, and Debian's command to install one."""
    old = install(tmp_path / "old", "1.8.0_412")
    with pytest.raises(JavaNotFound, match=f"Java 17 or newer, found only Java 8 in {old} .*openjdk-17-jre-headless"):
        find(tmp_path / "none", JAVA_HOME=str(old))
    with pytest.raises(JavaNotFound, match="found none"):
        find(tmp_path / "none")


def test_as_a_program_it_prints_the_home_or_why_not(tmp_path: Path) -> None:
    """What the Makefile asks."""
    home = install(tmp_path / "java", "17.0.1")
    command = [sys.executable, "-m", "diamant.cleaner.spark.environment.java"]
    environ = {**os.environ, "JAVA_HOME": str(home)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environ)
    assert done.stdout == f"{home}\n"


def test_without_java_tests_are_skipped_but_not_in_ci(tmp_path: Path) -> None:
    """In CI a skipped test must not count as tested."""
    with pytest.raises(pytest.skip.Exception, match="found none"):
        java_home({"PATH": ""}, str(tmp_path))
    with pytest.raises(pytest.fail.Exception, match=r"with CI set the tests of Spark must run: .* found none"):
        java_home({"PATH": "", "CI": "true"}, str(tmp_path))
