"""A SPARK_HOME of links to the installed PySpark: its Python in directories in place of zip files, its classes in an archive."""

from __future__ import annotations

import fcntl
import shutil
from hashlib import sha256
from pathlib import Path

from tests.cleaner.spark import class_archive


def quick_home(place: Path, java: str) -> tuple[Path, str]:
    """Return a SPARK_HOME below `place`, and options of JVMs for it. The first call makes both, and others wait for it.

    `place` outlives a run: the archive takes 20 s of one processor and 136 MB. A run has some thirty of those JVMs, and
    each takes two seconds less.
    """
    import pyspark

    jars = Path(pyspark.__file__).resolve().parent / "jars"
    version = sha256(f"{jars} {jars.stat().st_mtime_ns} {Path(java).resolve()}".encode()).hexdigest()[:16]
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        current = place / version
        home, archive = current / "home", current / "classes.jsa"
        if not archive.exists():
            for outdated in filter(Path.is_dir, place.iterdir()):
                shutil.rmtree(outdated)
            home.mkdir(parents=True)
            link_spark_home(home)
            class_archive.make(archive, home, java)
    return home, class_archive.use_of(archive) if archive.exists() else ""


def link_spark_home(home: Path) -> None:
    """Make `home`, an empty directory, one for tests.

    Spark puts the zips of `python/lib` first on the path of its Python processes. Python keeps no byte code of what it imports
    from a zip, so that each kind of daemon compiles PySpark again: half a second, some six times for each application. A
    directory of the zip's name serves as well, and there the byte code of the installed package is found. The tests of
    docker/spark.Dockerfile run with the zips.
    """
    import py4j
    import pyspark

    installed = Path(pyspark.__file__).parent
    for entry in installed.iterdir():
        if entry.name != "python":
            (home / entry.name).symlink_to(entry)
    for archive in (installed / "python" / "lib").glob("*.zip"):
        package = Path((pyspark if archive.name.startswith("pyspark") else py4j).__file__).parent
        directory = home / "python" / "lib" / archive.name
        directory.mkdir(parents=True)
        (directory / package.name).symlink_to(package)
