"""`make demo-spark`, and what it claims, looked at a second time by a scanner that shares no code with it."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from diamant.cleaner.evidence.certificates.certificate import TRUSTED, check_signature, parse_certificate
from diamant.cleaner.evidence.certificates.signing_key import read_public_key
from diamant.cleaner.spark.environment.java import JavaNotFound
from examples.find_customer_42 import __main__ as command
from examples.find_customer_42 import commands
from examples.find_customer_42.commands import find_command
from examples.find_customer_42.story import PATTERN
from examples.forget_customer_42.telling import Teller
from tests.cleaner.evidence.scan.naive_scanner import log_files, records_in
from tests.cleaner.spark.conftest import java

__all__ = ["java"]
PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "spark.md"
EMAIL, KEY = b"ada@example.com", b"customer-42"


def teller() -> tuple[Teller, io.StringIO]:
    """One that prints where a test can read it, as wide as where there is no terminal."""
    output = io.StringIO()
    return Teller(Console(file=output, highlight=False)), output


def example_of_page() -> list[str]:
    """What the page shows of the demonstration's output."""
    _, _, after = PAGE.read_text().partition("make demo-spark")
    _, _, block = after.partition("```text\n")
    lines = [line for line in block.partition("```")[0].splitlines() if line and line != "..."]
    assert len(lines) > 15
    return lines


@pytest.mark.slow
@pytest.mark.usefixtures("java")
def test_the_demonstration_is_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command ends well and prints what the page shows; data and certificate are as it says."""
    # Whoever looks on wants to hear after five minutes that something is wrong; a busy machine may need longer.
    monkeypatch.setattr(commands, "SPARK_TIMEOUT_S", 1800)
    directory = tmp_path / "demo"
    telling, output = teller()
    code = command.main(["--keep", "--directory", str(directory)], telling)
    said = output.getvalue()
    assert code == 0, said
    printed = {line.rstrip() for line in said.splitlines()}
    assert [line for line in example_of_page() if line not in printed] == []
    for data in ("data", "copy"):
        records = [record for path in log_files(directory / data) for record in records_in(path)]
        assert len(records) > 12 * 3
        assert not [record for record in records if EMAIL in (record.value or b"")]
        # What is left of the key are tombstones, one for each partition that it was in.
        assert [record.value for record in records if record.key == KEY] == [None] * 4
    folder = directory / "certificates"
    certificate = parse_certificate((folder / "spark.json").read_bytes())
    assert check_signature(certificate, read_public_key(str(folder / "public.pem"))) == TRUSTED
    assert certificate["state"] == "values-gone"
    assert [step["runners"] for step in certificate["done"]] == [["spark"]] * 4
    assert len(certificate["claims"]) == 36
    assert "Apache Spark" in (folder / "spark.html").read_text()


def test_without_java_it_does_not_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 1, and what is missing; nothing is made."""

    def no_java() -> None:
        raise JavaNotFound("Spark needs Java 17 or newer, found none")

    monkeypatch.setattr(command, "find_java", no_java)
    telling, output = teller()
    assert command.main(["--directory", str(tmp_path / "demo")], telling) == 1
    assert "it cannot begin: Spark needs Java 17 or newer, found none" in output.getvalue()
    assert not (tmp_path / "demo").exists()


@pytest.mark.slow
def test_the_reason_of_spark_ends_the_demonstration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that fails ends it with exit code 1 and its reason, and without files."""
    monkeypatch.setattr(
        "examples.find_customer_42.commands.diamant", lambda *_: ["/bin/sh", "-c", "echo no master >&2; exit 1"]
    )
    java = tmp_path / "java"
    (java / "bin").mkdir(parents=True)
    (java / "bin" / "java").touch(0o755)
    (java / "release").write_text('JAVA_VERSION="17.0.1"\n')
    monkeypatch.setenv("JAVA_HOME", str(java))
    telling, output = teller()
    assert command.main(["--directory", str(tmp_path / "demo")], telling) == 1
    assert "it could not go on: no master" in output.getvalue()
    assert not (tmp_path / "demo").exists()


def test_the_page_shows_the_command() -> None:
    """The page shows a command that can be typed."""
    assert " ".join(find_command(Path("DATA"), f"'{PATTERN}'")) in PAGE.read_text()
