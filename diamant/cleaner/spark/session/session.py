"""Starts Spark sessions: finds Java and PySpark, ships the code, compares versions, and raises errors that give advice.

    with spark_session("local[2]") as spark:
        spark.read.format("kafka-log").load("/var/lib/kafka").groupBy("topic").count().show()

    prepare_session(spark)          prepares a session that was made elsewhere

The driver's JVM runs on the Java found by `java.py`. Executors run the driver's own Python, unless `PYSPARK_PYTHON` or
`spark.pyspark.python` names another one. The code is shipped to executors as a zip (shipped_code.py), from an installed package
or a checkout. Every wait is bounded: for the master, for executors, for their first answer, and for new executors when all are
lost (executor_watch.py).

The configuration is passed to the JVM in a file of mode 0600 that is removed after it has been read, because every user of the
machine can read a process's arguments. The arguments contain only the settings needed to start the JVM: `spark.driver.memory`,
`spark.driver.extraJavaOptions` and the like, the master and the application's name.
"""

from __future__ import annotations

import atexit
import os
import re
import shlex
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from diamant.cleaner.spark.environment.java import JavaNotFound, find_java
from diamant.cleaner.spark.environment.shipped_code import (
    Versions,
    refuse_difference,
    report_versions,
    write_code_archive,
)
from diamant.cleaner.spark.environment.spark_errors import SparkError, SparkUnavailable
from diamant.cleaner.spark.environment.spark_settings import EXECUTOR_TIMEOUT_MS, is_local
from diamant.cleaner.spark.session.executor_watch import ExecutorWatch
from diamant.kernels import require_kernels
from diamant.storage.properties import format_properties

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

T = TypeVar("T")

DEFAULT_MASTER = "local[*]"
CONNECT_TIMEOUT_MS = 10_000
"""Timeout of a TCP connection to a standalone master, made before a JVM is started."""
MIN_PYSPARK = (4, 1)
"""The first version that pushes filters into Python data sources."""
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"

_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # Without this, a worker started in a checkout would import the checkout's code instead of the shipped code.
    "spark.executorEnv.PYTHONSAFEPATH": "1",
    PUSHDOWN: "true",
}
_LOCAL_DEFAULTS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Bypass-merge shuffles, the default for few partitions, write a file for each, and take 1.5 times the JVM's CPU time.
    "spark.shuffle.sort.bypassMergeThreshold": "1",
}
_LOCAL_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1"
"""Use only the first-tier JIT compiler. The other takes seconds of CPU from the tasks, and the JVM only passes bytes on."""
_LOGGING = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = spark: %p %c{1}: %m%n
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
logger.task.name = org.apache.spark.executor.Executor
logger.task.level = off
logger.tasks.name = org.apache.spark.scheduler.TaskSetManager
logger.tasks.level = off
"""
"""Configuration of log4j. Only errors are logged, except those of failed tasks, which are raised instead."""
_MASTER = re.compile(r"local(\[(\*|[1-9][0-9]*)(\s*,\s*[0-9]+)?\])?|local-cluster\[.*\]|spark://.*|k8s://.*|yarn")
"""The masters that spark-submit accepts; for anything else it prints a stack trace."""
_MISMATCH = re.compile(r"version:? *\(?(\d+\.\d+)\)?.*?driver:? *\(?(\d+\.\d+)\)?", re.DOTALL)


@contextmanager
def spark_session(
    master: str | None = None,
    app_name: str = "diamant",
    conf: Mapping[str, str] | None = None,
    *,
    executor_timeout_ms: int = EXECUTOR_TIMEOUT_MS,
) -> Iterator[SparkSession]:
    """Start a session on `master` (default `local[*]`), prepare it, and stop it at the end.

    If the process already has a session, that session is used and left running; `conf` is then ignored. Raises SparkError if it
    has another master. Raises SparkUnavailable if PySpark or Java is missing, the master does not answer, or an executor has
    different software. If the session has no executor for `executor_timeout_ms`, its jobs are cancelled, and the block ends with
    SparkUnavailable (`reason_of` gives the reason).
    """
    pyspark = _import_pyspark()
    active = pyspark.SparkContext._active_spark_context
    if active is not None:
        if master is not None and master != active.master:
            raise SparkError(f"this process has a Spark session on {active.master} already; stop it to use {master}")
        session = pyspark.sql.SparkSession.builder.getOrCreate()
        prepare_session(session, executor_timeout_ms=executor_timeout_ms)
        yield session
        return
    master = master or DEFAULT_MASTER
    _reach(master)
    with tempfile.TemporaryDirectory(prefix="diamant-spark-") as directory:
        session = _start(pyspark, master, app_name, conf or {}, Path(directory))
        try:
            prepare_session(session, executor_timeout_ms=executor_timeout_ms)
            with _watched(session, master, executor_timeout_ms):
                yield session
        finally:
            session.stop()


def prepare_session(session: SparkSession, *, executor_timeout_ms: int = EXECUTOR_TIMEOUT_MS) -> None:
    """Ship the code, compare the software of executors with the driver's, and register the data source `kafka-log`.

    Does nothing for a session that is already prepared. Raises SparkUnavailable like `spark_session`.
    """
    context = session.sparkContext
    if getattr(context, "_diamant_is_prepared", False):
        return
    # Executors fetch this file, and may start late, so keep it until the process ends.
    directory = tempfile.mkdtemp(prefix="diamant-code-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    context.addPyFile(str(write_code_archive(directory)))
    session.conf.set(PUSHDOWN, "true")
    _compare_executors(session, executor_timeout_ms)
    from diamant.cleaner.spark.source.data_source import KafkaLogDataSource

    session.dataSource.register(KafkaLogDataSource)
    context._diamant_is_prepared = True  # type: ignore[attr-defined]


def within(session: SparkSession, timeout_ms: int, what: str, job: Callable[[], T]) -> T:
    """Return the result of `job`, which runs Spark jobs. After `timeout_ms`, cancel them and raise SparkUnavailable."""
    context = session.sparkContext
    tag = f"diamant-{threading.get_ident()}-{what.replace(',', ' ')}"
    outcome: list[T | BaseException] = []

    def work() -> None:
        context.addJobTag(tag)
        try:
            outcome.append(job())
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=work, name="spark-job", daemon=True)
    thread.start()
    thread.join(timeout_ms / 1000)
    if thread.is_alive():
        context.cancelJobsWithTag(tag)
        raise SparkUnavailable(
            f"{what} took more than {timeout_ms / 1000:g} s on {context.master}: are there workers with free cores and memory?"
        )
    result = outcome[0]
    if isinstance(result, BaseException):
        raise result
    return result


@contextmanager
def _watched(session: SparkSession, master: str, timeout_ms: int) -> Iterator[None]:
    """End the jobs of a session that has lost its executors, and replace Spark's error with the reason."""
    if is_local(master):
        yield
        return
    context = session.sparkContext
    with ExecutorWatch(context, timeout_ms) as watch:
        context._diamant_watch = watch  # type: ignore[attr-defined]
        try:
            yield
        except Exception as error:
            if watch.reason is None or isinstance(error, SparkUnavailable):
                raise
            raise SparkUnavailable(watch.reason) from error


def reason_of(context: Any, error: BaseException) -> str:
    """Return in one line why a job of `context` failed with `error`."""
    watch: ExecutorWatch | None = getattr(context, "_diamant_watch", None)
    return first_line(error) if watch is None or watch.reason is None else watch.reason


# -- starting --------------------------------------------------------------------------------------------------------------


def _import_pyspark() -> Any:
    require_kernels("Spark")
    try:
        import pyarrow  # noqa: F401
        import pyspark.sql
    except ImportError as error:
        missing = (error.name or "pyspark").partition(".")[0]
        raise SparkUnavailable(f"{missing} is not installed: in a clone of Diamant, pip install '.[spark]'") from None
    check_pyspark(pyspark.__version__)
    return pyspark


def check_pyspark(version: str) -> None:
    """Raise SparkUnavailable for a version below `MIN_PYSPARK`."""
    if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < MIN_PYSPARK:
        needed = ".".join(map(str, MIN_PYSPARK))
        raise SparkUnavailable(
            f"PySpark {version} is installed, expected {needed} or newer: in a clone of Diamant, pip install '.[spark]'"
        )


def _reach(master: str) -> None:
    """Check that a master in `spark://host:port,host:port` accepts connections. Spark itself would try for a minute.

    Raises SparkUnavailable if no master answers, or if `master` has no form that Spark accepts.
    """
    if not _MASTER.fullmatch(master):
        raise SparkUnavailable(
            f"{master!r} is not a Spark master: expected local[N] or local[*], spark://HOST:PORT, yarn or k8s://HOST:PORT"
        )
    if not master.startswith("spark://"):
        return
    failures = []
    for address in master.removeprefix("spark://").split(","):
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal():
            raise SparkUnavailable(f"{master}: expected spark://HOST:PORT, such as spark://127.0.0.1:7077")
        try:
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT_MS / 1000).close()
            return
        except OSError as error:
            failures.append(f"{address}: {error.strerror or error}")
    raise SparkUnavailable(
        f"no Spark master answers at {master} ({'; '.join(failures)}). Is it running, and is this the address in its log?"
    )


def _start(pyspark: Any, master: str, app_name: str, conf: Mapping[str, str], directory: Path) -> SparkSession:
    try:
        java = find_java()
    except JavaNotFound as error:
        raise SparkUnavailable(str(error)) from None
    is_alone = is_local(master)
    logging = directory / "log4j2.properties"
    logging.write_text(_LOGGING)
    settings = {
        **_DEFAULTS,
        **(_LOCAL_DEFAULTS if is_alone else {}),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        **conf,
    }
    # Ours come first, so that the user's options take precedence.
    java_options = [
        _LOCAL_JAVA_OPTIONS if is_alone else "",
        f"-Dlog4j2.configurationFile={logging.as_uri()}",
        f'"-Djava.io.tmpdir={tempfile.gettempdir()}"',
        conf.get("spark.driver.extraJavaOptions", ""),
    ]
    settings["spark.driver.extraJavaOptions"] = " ".join(filter(None, java_options))
    properties = directory / "spark.properties"
    properties.touch(0o600)
    properties.write_text(format_properties(settings), encoding="latin-1")
    submitted = os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell")
    environment = {
        "JAVA_HOME": java.home,
        "PYTHONSAFEPATH": "1",
        "PYSPARK_SUBMIT_ARGS": f"--load-spark-defaults --properties-file {shlex.quote(str(properties))} {submitted}",
    }
    if "spark.pyspark.python" not in settings:
        environment["PYSPARK_PYTHON"] = os.environ.get("PYSPARK_PYTHON") or sys.executable
    if is_alone:
        environment["SPARK_LOCAL_IP"] = "127.0.0.1"
    with changed_environment(environment):
        try:
            session: SparkSession = pyspark.sql.SparkSession.builder.master(master).appName(app_name).getOrCreate()
        except Exception as error:  # errors of Py4J, PySpark and Java
            said = first_line(error)
            if "JAVA_GATEWAY_EXITED" in said:
                asked = "are spark.driver.memory, spark.driver.extraJavaOptions and the like right?"
                said = f"the Java in {java.home} ended; see its messages above: {asked}"
            raise SparkUnavailable(f"Spark did not start on {master}: {said}") from error
        finally:
            properties.unlink()
    return session


@contextmanager
def changed_environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for processes started inside the block."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


# -- executors -------------------------------------------------------------------------------------------------------------


def _compare_executors(session: SparkSession, timeout_ms: int) -> None:
    """Raise SparkUnavailable if an executor has different software. Tasks check executors that join later (`check_versions`)."""
    context = session.sparkContext
    driver = Versions.here()
    count = max(1, min(context.defaultParallelism, 64))
    try:
        answers = within(
            session,
            timeout_ms,
            "the first answer of executors",
            lambda: context.parallelize(range(count), count).mapPartitions(report_versions).collect(),
        )
    except SparkError:
        raise
    except Exception as error:  # Spark's various errors for a Python that cannot run
        raise _unusable_python(driver, error) from error
    for versions, host, python in answers:
        refuse_difference(driver, versions, host, python)


def _unusable_python(driver: Versions, error: Exception) -> SparkUnavailable:
    text = str(error)
    advice = "select another Python with PYSPARK_PYTHON or --conf spark.pyspark.python=PATH"
    if "PYTHON_VERSION_MISMATCH" in text:
        match = _MISMATCH.search(text[text.index("PYTHON_VERSION_MISMATCH") :])
        theirs = match[1] if match else "another version"
        return SparkUnavailable(
            f"executors run Python {theirs}, the driver Python {driver.python}: they need the same version; {advice}"
        )
    if "Cannot run program" in text:
        start = text.index("Cannot run program")
        return SparkUnavailable(f"executors have no Python: {text[start:].splitlines()[0]}; {advice}")
    return SparkUnavailable(f"executors cannot run Diamant's code: {first_line(error)}; {advice}")


def first_line(error: BaseException) -> str:
    """Return the essence of a Spark error in one line: the innermost Python error if there is one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    inner = [
        line for line in lines if re.match(r"[\w.]*(Error|Exception|Exited|Unavailable|CorruptLog|Changed)\b.*: ", line)
    ]
    python = [line for line in inner if not line.startswith(("py4j.", "org.apache.", "java."))]
    found = (python or inner or lines or [type(error).__name__])[0]
    return re.sub(r"^(diamant\.[\w.]*\.)?(\w+(Error|Unavailable|Changed)|CorruptLog): ", "", found)
