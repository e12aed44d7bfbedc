"""A SPARK_HOME of links to the installed PySpark, with its Python in directories in place of zip files."""

from __future__ import annotations

from pathlib import Path


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
