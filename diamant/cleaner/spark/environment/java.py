"""Finds a Java for Spark. Uses the standard library only.

    python -m diamant.cleaner.spark.environment.java        prints its home, or an error with exit code 1

Tries `JAVA_HOME`, then `java` on the PATH, then the versions in /usr/lib/jvm. Of these it prefers the oldest that is new enough,
because Spark is not tested with later Java versions.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

MIN_VERSION = 17
"""The oldest version that Spark 4 runs on."""
INSTALL_COMMAND = "apt-get install -y openjdk-17-jre-headless"
"""Command that installs Java on Debian and Ubuntu."""
JVM_DIRECTORY = "/usr/lib/jvm"
_ASK_TIMEOUT_S = 20
_VERSION = re.compile(r'"?(\d+)(?:\.(\d+))?')


class JavaNotFound(Exception):
    """No Java of version 17 or newer was found. The message lists the older ones found, and says how to install Java."""


@dataclass(frozen=True, slots=True)
class Java:
    """An installed Java."""

    home: str
    """The value for JAVA_HOME: the directory that contains `bin/java`."""
    version: int
    """17, 21 and so on; 8 for 1.8."""


def find_java(environ: Mapping[str, str] = os.environ, jvm_directory: str = JVM_DIRECTORY) -> Java:
    """Return the Java to use. Raises JavaNotFound if there is none, or none that is new enough."""
    too_old = []
    for home in _homes(environ, jvm_directory):
        version = _version_of(home)
        if version is None:
            continue
        if version >= MIN_VERSION:
            return Java(home, version)
        too_old.append(f"Java {version} in {home}")
    found = f"found only {', '.join(too_old)}" if too_old else "found none"
    raise JavaNotFound(
        f"Spark needs Java {MIN_VERSION} or newer, {found} (searched JAVA_HOME, PATH and {jvm_directory}). "
        f"On Debian or Ubuntu, as root: {INSTALL_COMMAND}; or set JAVA_HOME to a Java that is installed elsewhere"
    )


def _homes(environ: Mapping[str, str], jvm_directory: str) -> Iterator[str]:
    """Yield possible home directories, each once."""
    seen = set()
    for home in _candidates(environ, jvm_directory):
        home = os.path.realpath(home)
        if home not in seen and os.access(f"{home}/bin/java", os.X_OK):
            seen.add(home)
            yield home


def _candidates(environ: Mapping[str, str], jvm_directory: str) -> Iterator[str]:
    if environ.get("JAVA_HOME"):
        yield environ["JAVA_HOME"]
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path is not None:
        yield os.path.dirname(os.path.dirname(os.path.realpath(on_path)))
    try:
        installed = [str(path) for path in Path(jvm_directory).iterdir()]
    except OSError:
        return
    versions = [(version, home) for home in installed if (version := _version_of(home)) is not None]
    yield from (home for _, home in sorted(versions))


def _version_of(home: str) -> int | None:
    """Return the version of the Java in `home`; None if there is no Java, or if it does not run."""
    try:
        with open(f"{home}/release", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if line.startswith("JAVA_VERSION="):
                    return _parse_version(line.removeprefix("JAVA_VERSION="))
    except OSError:
        pass  # Not every distribution ships this file, so run the program instead.
    try:
        asked = subprocess.run(
            [f"{home}/bin/java", "-version"], capture_output=True, text=True, timeout=_ASK_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    _, _, rest = (asked.stderr + asked.stdout).partition("version ")
    return _parse_version(rest)


def _parse_version(text: str) -> int | None:
    """Return 17 for `"17.0.15"`, 8 for `"1.8.0_412"`."""
    match = _VERSION.match(text.strip())
    if match is None:
        return None
    major = int(match[1])
    return int(match[2]) if major == 1 and match[2] else major


def main() -> int:
    """Print the home of the Java to use."""
    try:
        print(find_java().home)
    except JavaNotFound as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
