"""One Spark session for all tests that need a real one. Without Java they are skipped; with CI set, that is a failure."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pytest

from diamant.cleaner.spark.environment.java import JVM_DIRECTORY, JavaNotFound, find_java
from tests.cleaner.spark.cluster import JAVA_OPTIONS
from tests.cleaner.spark.spark_home import quick_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONF = {
    "spark.driver.extraJavaOptions": JAVA_OPTIONS,
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.driver.memory": "1g",
}


def java_home(environ: Mapping[str, str], jvm_directory: str = JVM_DIRECTORY) -> str:
    """Return the home of a Java that Spark runs on; skips the test without, or fails it if CI is set."""
    try:
        return find_java(environ, jvm_directory).home
    except JavaNotFound as error:
        if environ.get("CI"):
            pytest.fail(f"with CI set the tests of Spark must run: {error}")
        pytest.skip(str(error))


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark is not even installed."""
    monkeypatch.setitem(sys.modules, "pyspark", None)


@pytest.fixture(scope="session")
def java(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[str]:
    """The home of the Java that there is; from here on Spark starts quicker (`quick_home`)."""
    found = java_home(os.environ)
    cache = getattr(pytestconfig, "cache", None)
    place = tmp_path_factory.mktemp("spark") if cache is None else cache.mkdir("spark")
    home, options = quick_home(place, found)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_HOME", str(home))
        patch.setenv("SPARK_SUBMIT_OPTS", options)
        yield found


@pytest.fixture(scope="session")
def spark(java: str) -> Iterator[SparkSession]:
    """A session of two cores in this process, with Python workers of its own."""
    from diamant.cleaner.spark.session.session import spark_session

    with spark_session("local[2]", "tests", CONF) as session:
        yield session
