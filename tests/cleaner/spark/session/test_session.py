"""Sessions: shipped code, compared versions, and the errors if Spark is not available."""

from __future__ import annotations

import pickle
import py_compile
import re
import socket
import subprocess
import sys
import zipfile
from dataclasses import replace
from importlib.util import module_from_spec
from pathlib import Path
from py_compile import PycInvalidationMode
from typing import TYPE_CHECKING
from zipimport import zipimporter

import pytest

from diamant.cleaner.spark.environment.java import JavaNotFound
from diamant.cleaner.spark.environment.shipped_code import (
    Versions,
    byte_code,
    code_digest,
    refuse_difference,
    report_versions,
    write_code_archive,
)
from diamant.cleaner.spark.environment.spark_errors import SparkError, SparkUnavailable
from diamant.cleaner.spark.session import session
from diamant.cleaner.spark.session.session import prepare_session, spark_session, within
from tests.cleaner.spark.big_log import write_big_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.slow
def test_the_code_is_the_same_zip_wherever_it_comes_from(tmp_path: Path) -> None:
    """The zip's name identifies the code, also for a process that imports from it. The broker is left out."""
    path = write_code_archive(tmp_path)
    assert path.name == f"diamant-code-{code_digest()}.zip"
    with zipfile.ZipFile(path) as archive:
        assert {"diamant/__init__.py", "diamant/cleaner/spark/session/session.py"} <= set(archive.namelist())
        assert {Path(name).suffix for name in archive.namelist()} <= {".py", ".pyc", ".so"}
        assert not [name for name in archive.namelist() if name.startswith("diamant/broker")]
    program = (
        "from diamant.cleaner.spark.environment.shipped_code import Versions; import diamant; "
        "print(Versions.here().code, diamant.__file__)"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", f"import sys; sys.path.insert(0, {str(path)!r}); {program}"],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    digest, place = done.stdout.split()
    assert (digest, place.removesuffix("c")) == (code_digest(), f"{path}/diamant/__init__.py")


@pytest.mark.parametrize("mode", list(PycInvalidationMode), ids=lambda mode: mode.name)
def test_byte_code_is_taken_from_python_s_cache(tmp_path: Path, mode: PycInvalidationMode) -> None:
    """A module in a zip is imported from it, or from the source where Python's version differs. Outdated byte code is ignored."""
    source = tmp_path / "one.py"
    source.write_text("NUMBER = 1\n")
    assert byte_code(source, source.read_bytes()) is None
    py_compile.compile(str(source), doraise=True, invalidation_mode=mode)
    compiled = byte_code(source, source.read_bytes())
    assert compiled is not None
    for magic, kind in ((compiled[:4], ".pyc"), (b"\0\0\r\n", ".py")):
        with zipfile.ZipFile(tmp_path / f"{kind}.zip", "w") as archive:
            archive.writestr("one.py", source.read_bytes())
            archive.writestr("one.pyc", magic + compiled[4:])
        importer = zipimporter(f"{tmp_path}/{kind}.zip")
        spec = importer.find_spec("one")
        assert spec is not None
        module = module_from_spec(spec)
        importer.exec_module(module)
        assert (module.NUMBER, Path(str(module.__file__)).suffix) == (1, kind)
    source.write_text("NUMBER = 22\n")
    assert byte_code(source, source.read_bytes()) is None


def test_kernels_are_unpacked_beside_the_zip(tmp_path: Path) -> None:
    """A worker imports them from there; two that begin at the same time do not disturb each other."""
    path = write_code_archive(tmp_path)
    program = f"""
import sys; sys.path.insert(0, {str(path)!r})
from diamant.kernels import record_walk
print(record_walk.__file__, record_walk.walk(b"", 0, 0)[0])
"""
    workers = [
        subprocess.Popen([sys.executable, "-P", "-c", program], stdout=subprocess.PIPE, text=True, cwd=tmp_path)
        for _ in range(2)
    ]
    for worker in workers:
        said, _ = worker.communicate(timeout=60)
        place, fault = said.split()
        assert (Path(place).parent, fault) == (Path(f"{path}.kernels"), "0")
    assert sorted(file.name for file in tmp_path.iterdir()) == [path.name, f"{path.name}.kernels"]


def test_kernels_that_cannot_be_unpacked_leave_nothing(tmp_path: Path) -> None:
    """On a full disk, for example, the worker fails, and the next one finds no partial files."""
    path = write_code_archive(tmp_path)
    with zipfile.ZipFile(path) as archive:
        kernel = archive.getinfo(next(name for name in archive.namelist() if name.endswith("/compiled.abi3.so")))
    content = bytearray(path.read_bytes())
    middle = kernel.header_offset + kernel.compress_size // 2
    content[middle : middle + 100] = bytes(100)
    path.write_bytes(content)
    program = f"import sys; sys.path.insert(0, {str(path)!r}); import diamant.kernels"
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert (done.returncode, "in _unpack" in done.stderr) == (1, True)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_differences_are_reported_with_both_versions() -> None:
    """Of Python, of Diamant and of each package that makes bytes."""
    driver = Versions.here()
    assert pickle.loads(pickle.dumps(driver)) == driver
    refuse_difference(driver, driver, "host", "python")
    packages = (("numpy", "1.26.4"), *driver.packages[1:-1], ("backports.zstd", "none"))
    other = replace(driver, python="3.9 on arm64", code="0123456789abcdef", packages=packages)
    with pytest.raises(SparkUnavailable) as raised:
        refuse_difference(driver, other, "worker-3", "/opt/python")
    text = str(raised.value)
    assert "the executor on worker-3 (/opt/python) has Python 3.9 on arm64 instead of" in text
    assert f"Diamant's code 0123456789abcdef instead of {driver.code}" in text
    assert f"numpy 1.26.4 instead of {dict(driver.packages)['numpy']}" in text
    assert f"backports.zstd none instead of {dict(driver.packages)['backports.zstd']}" in text


def test_a_master_that_does_not_answer_is_reported_at_once() -> None:
    """Before a JVM is started; Spark would try for a minute, without a clear error."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        # Bound and not listening: refused.
        with pytest.raises(
            SparkUnavailable, match=f"no Spark master answers at spark://{address} .*Connection refused"
        ):
            session._reach(f"spark://{address}")
    with pytest.raises(SparkUnavailable, match="expected spark://HOST:PORT"):
        session._reach("spark://somewhere")


@pytest.mark.parametrize(
    "master", ["foo", "local[x]", "local[0]", "local[2", "spark", "mesos://here:5050", "", "yarn "]
)
def test_an_invalid_master_is_refused_at_once(master: str) -> None:
    """Spark would show a trace of Java's."""
    with pytest.raises(SparkUnavailable, match=r"is not a Spark master: expected local\[N\]"):
        session._reach(master)


@pytest.mark.parametrize(
    "master",
    ["local", "local[*]", "local[2]", "local[2, 3]", "local-cluster[2,1,1024]", "yarn", "k8s://https://here:443"],
)
def test_every_master_that_spark_knows_is_taken(master: str) -> None:
    """Only one of a standalone cluster is connected to."""
    session._reach(master)


@pytest.mark.slow
@pytest.mark.usefixtures("java")
def test_a_java_that_does_not_start_is_reported_with_what_to_look_at(tmp_path: Path) -> None:
    """Its own messages are above the error."""
    write_big_log(tmp_path / "t-0")
    command = [
        sys.executable,
        "-m",
        "diamant.broker.cli",
        "spark",
        "stats",
        str(tmp_path),
        "--conf",
        "spark.driver.memory=much",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    *above, last = done.stderr.splitlines()
    assert "Invalid maximum heap size: -Xmxmuch" in above
    assert re.fullmatch(
        r"diamant: Spark did not start on local\[\*\]: .* ended; .*: are spark.driver.memory, .* right\?", last
    )


def test_no_java_is_reported_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is ours, not Spark's."""

    def find_none() -> None:
        raise JavaNotFound("Spark needs Java 17 or newer, found none")

    monkeypatch.setattr(session, "find_java", find_none)
    import pyspark

    with pytest.raises(SparkUnavailable, match="Spark needs Java 17 or newer, found none"):
        session._start(pyspark, "local[1]", "x", {}, tmp_path)


@pytest.mark.parametrize("module", ["pyspark", "pyarrow"])
def test_a_missing_package_is_reported_with_what_to_type(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The session, the public module and, without a traceback, the commands name what to install."""
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SparkUnavailable, match=rf"{module} is not installed: .* pip install '.\[spark\]'"):
        session._import_pyspark()


def test_an_old_pyspark_is_reported() -> None:
    """Filters cannot be pushed down there."""
    with pytest.raises(SparkUnavailable, match=r"PySpark 3\.5\.8 is installed, expected 4\.1 or newer"):
        session.check_pyspark("3.5.8")


@pytest.mark.slow
def test_executors_run_the_code_that_was_shipped(spark: SparkSession) -> None:
    """From the zip, although the tests run in a checkout."""
    rdd = spark.sparkContext.parallelize(range(2), 2)
    assert {versions for versions, _, _ in rdd.mapPartitions(report_versions).collect()} == {Versions.here()}

    def where(_: object) -> list[str]:
        import diamant

        return [str(diamant.__file__)]

    assert all(f"diamant-code-{code_digest()}.zip/" in path for path in rdd.mapPartitions(where).collect())


@pytest.mark.slow
def test_a_session_that_is_there_is_used(spark: SparkSession) -> None:
    """The session is left running; another master is refused."""
    with spark_session() as same:
        assert same.sparkContext is spark.sparkContext
    assert spark.range(3).count() == 3
    with pytest.raises(SparkError, match=r"has a Spark session on local\[2\] already; stop it to use local\[1\]"):
        with spark_session("local[1]"):
            pass
    prepare_session(spark)


@pytest.mark.slow
def test_a_job_without_an_end_is_ended(spark: SparkSession) -> None:
    """Without an executor there is an error after a timeout, and the session remains usable."""
    context = spark.sparkContext

    def endless() -> int:
        return context.parallelize(range(1), 1).map(wait_for_ever).count()

    with pytest.raises(SparkUnavailable, match=r"the answer took more than 0\.5 s on local\[2\]: are there workers"):
        within(spark, 500, "the answer", endless)
    assert spark.range(3).count() == 3


def wait_for_ever(_: object) -> None:
    """Never return; Spark ends the worker."""
    import threading

    threading.Event().wait(600)


def test_executors_without_a_usable_python_are_reported() -> None:
    """Spark's error becomes one line."""
    driver = Versions.here()
    mismatch = (
        "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9 than that in driver: 3.11, PySpark"
    )
    text = str(session._unusable_python(driver, Exception(mismatch)))
    assert text.startswith(
        f"executors run Python 3.9, the driver Python {driver.python}: they need the same version; select another"
    )
    missing = 'java.io.IOException: Cannot run program "/no/python": error=2, No such file or directory\n\tat java'
    text = str(session._unusable_python(driver, Exception(missing)))
    assert text.startswith('executors have no Python: Cannot run program "/no/python": error=2, No such file')


def test_the_public_module_is_light_and_tells_what_is_missing() -> None:
    """Importing it imports nothing else. Without PySpark, its names raise an error with the command to install it."""
    program = """
import sys
sys.modules["pyspark"] = None
import diamant.spark
from diamant.spark import SparkError, spark_session
try:
    diamant.spark.KafkaLogDataSource
except ImportError as error:
    print(error)
print(*[name for name in ("numpy", "pyarrow", "pandas") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "pyspark is not installed: in a clone of Diamant, pip install '.[spark]'\n\n"
