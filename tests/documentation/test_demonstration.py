"""`make demo`, and what it claims, looked at a second time by a scanner that shares no code with it."""

from __future__ import annotations

import io
import os
import re
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest
from rich.console import Console

from diamant.cleaner.evidence.certificates.certificate import TRUSTED, check_signature, parse_certificate
from diamant.cleaner.evidence.certificates.signing_key import read_public_key
from diamant.protocol.batches.batch_records import build_batch
from diamant.protocol.batches.header import Header, Record
from examples.forget_customer_42 import __main__ as command
from examples.forget_customer_42.raw_files import search_bytes, search_records
from examples.forget_customer_42.telling import ClaimFailed, Teller
from tests.cleaner.evidence.scan.naive_scanner import log_files, records_in

ROOT = Path(__file__).resolve().parents[2]
LONGEST_S = 30
EMAIL, NAME, KEY = b"ada@example.com", b"Ada Example", b"customer-42"
ERASED, REDACTED, BLANKED = ("customers", "newsletter"), ("orders",), ("invoices",)


def holders(data: Path, needle: bytes) -> set[str]:
    """Topics of which a file has the bytes, as they are or in a record; `.` for files of no topic."""
    found = set()
    for path in data.rglob("*"):
        if path.is_file() and needle in path.read_bytes():
            found.add("." if path.parent == data else path.parent.name.rpartition("-")[0])
    for path in log_files(data):
        if any(needle in (one.value or b"") + (one.key or b"") for one in records_in(path)):
            found.add(path.parent.name.rpartition("-")[0])
    return found


class Witness(Teller):
    """Looks at the files itself whenever a step begins, and keeps what was printed."""

    def __init__(self, data: Path) -> None:
        self.output = io.StringIO()
        super().__init__(Console(file=self.output, highlight=False))
        self._data = data
        self.seen: list[tuple[str, dict[bytes, set[str]]]] = []
        """Title of the step, and who holds what as it begins."""
        self.looking_s = 0.0
        """How long it has looked at files."""

    def chapter(self, title: str) -> None:
        super().chapter(title)
        start_s = time.perf_counter()
        found = {needle: holders(self._data, needle) for needle in (EMAIL, NAME, KEY)}
        self.seen.append((title, found))
        self.looking_s += time.perf_counter() - start_s

    def at(self, words: str) -> dict[bytes, set[str]]:
        """What was held as the step with these words in its title began."""
        (found,) = [found for title, found in self.seen if words in title]
        return found


def customers_in(copy: Path) -> set[str]:
    """Return the customers in one of the SQLite copies."""
    with closing(sqlite3.connect(copy)) as database:
        return {number for (number,) in database.execute("SELECT number FROM customers")}


def waited_for_processors_s() -> float:
    """For how long, since this machine began, somebody had to wait for a processor; 0 where the kernel does not tell."""
    try:
        told = Path("/proc/pressure/cpu").read_text()
    except OSError:
        return 0.0
    found = re.search(r"^some .*total=(\d+)", told, re.MULTILINE)
    return int(found[1]) / 1e6 if found else 0.0


def excerpt_of_readme() -> list[str]:
    """Return the claims that the README shows."""
    lines = [line.removeprefix("    ") for line in (ROOT / "README.md").read_text().splitlines()]
    claims = [line for line in lines if line.startswith("   ✓ ")]
    assert len(claims) > 5
    return claims


@pytest.mark.slow
def test_the_demonstration_is_true(tmp_path: Path) -> None:
    """Data, copies and certificates are, before and after each step, what it says; as plain text, for there is no terminal. It
    takes less than 30 seconds.
    """
    directory = tmp_path / "demo"
    witness = Witness(directory / "data")
    start_s, waited_s = time.perf_counter(), waited_for_processors_s()
    code = command.main(["--keep", "--directory", str(directory)], witness)
    took_s = time.perf_counter() - start_s - witness.looking_s
    output = witness.output.getvalue()
    assert code == 0, output
    # While somebody waited for a processor, and where more than two want each of them, others had part of the time.
    waited_s = waited_for_processors_s() - waited_s
    crowd = os.getloadavg()[0] / len(os.sched_getaffinity(0)) / 2
    assert took_s < LONGEST_S * max(1, crowd) + waited_s
    assert "\x1b" not in output
    assert [line for line in excerpt_of_readme() if line not in output.splitlines()] == []
    # Where it lay, and when it went from where.
    everywhere = {*ERASED, *REDACTED}
    assert witness.at("asks to be forgotten")[EMAIL] == everywhere
    assert witness.at("Erase the key")[EMAIL] == everywhere
    assert witness.at("Redact the orders")[EMAIL] == {*REDACTED}
    assert witness.at("Redact the orders")[NAME] == {*BLANKED}
    assert witness.at("Redact the orders")[KEY] == everywhere
    assert witness.at("Blank a field")[NAME] == {*BLANKED}
    assert witness.at("Who has heard")[EMAIL] == witness.at("Who has heard")[NAME] == set()
    assert witness.at("Who has heard")[KEY] == {*ERASED}
    assert witness.at("What no broker can do")[KEY] == set()
    assert all(holders(directory / "data", needle) == set() for needle in (EMAIL, NAME, KEY))
    # The others are where they were.
    assert holders(directory / "data", b"customer7@example.com") == everywhere
    assert holders(directory / "data", b"Customer Number 43") == {"customers", *BLANKED}
    # The copies.
    copies = {name: customers_in(directory / f"{name}.sqlite") for name in ("crm", "reporting", "analytics")}
    assert {name: "customer-42" in found for name, found in copies.items()} == {
        "crm": False,
        "reporting": False,
        "analytics": True,
    }
    assert {len(found | {"customer-42"}) for found in copies.values()} == {100}
    # The certificates.
    folder = directory / "certificates"
    pinned = read_public_key(str(folder / "public.pem"))
    states = {}
    for name in ("values-gone", "key-gone", "orders", "invoices"):
        certificate = parse_certificate((folder / f"{name}.json").read_bytes())
        assert check_signature(certificate, pinned) == TRUSTED
        assert not certificate["is_evidence"]
        states[name] = certificate["state"]
        assert "This is not evidence" in (folder / f"{name}.html").read_text()
    assert states == {
        "values-gone": "values-gone",
        "key-gone": "key-gone",
        "orders": "records-gone",
        "invoices": "fields-blanked",
    }
    forged = parse_certificate((folder / "values-gone.tampered.json").read_bytes())
    assert check_signature(forged, pinned) != TRUSTED
    assert not [path for path in folder.iterdir() if EMAIL in path.read_bytes() or KEY in path.read_bytes()]


def write_segment(data: Path, name: str, codec: int, value: bytes, headers: tuple[Header, ...] = ()) -> None:
    """A file of one batch with many records, the last of which has the value."""
    records = [Record(one, 1000, b"k%d" % one, b"somebody else" * 9) for one in range(30)]
    records.append(Record(30, 1000, b"key", value, headers))
    path = data / name
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_bytes(build_batch(records, codec=codec))


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("stage", ["", ".deleted", ".swap", ".cleaned"])
def test_the_search_of_records_finds_what_is_there(tmp_path: Path, codec: int, stage: str) -> None:
    """Records are found with every codec and in files of every stage; otherwise it would mean nothing that it finds none."""
    write_segment(tmp_path, f"t-1-0/00000000000000000000.log{stage}", codec, b'{"email": "ada@example.com"}')
    (found,) = search_records(tmp_path, ["ada@example.com", "nobody@example.com"])
    assert (found.topic, found.field, found.offset) == ("t-1", "value", 30)


def test_the_search_of_records_looks_at_headers_and_keys(tmp_path: Path) -> None:
    """A person may be named there."""
    write_segment(tmp_path, "t-0/00000000000000000000.log", 4, b"", (Header("user", b"ada@example.com"),))
    assert {one.field for one in search_records(tmp_path, ["ada@example.com", "k7"])} == {"header", "key"}


def test_the_search_of_bytes_reads_every_file(tmp_path: Path) -> None:
    """The search of bytes reads files of unknown kinds, too."""
    (tmp_path / "t-0").mkdir()
    for name in ("notes", "t-0/00000000000000000000.index", "t-0/.hidden"):
        (tmp_path / name).write_bytes(b"\0\0ada@example.com\0")
    found = search_bytes(tmp_path, ["ada@example.com"])
    assert sorted(one.file for one in found) == ["notes", "t-0/.hidden", "t-0/00000000000000000000.index"]
    assert {one.topic for one in found} == {"t", "notes"}


def plain_teller() -> tuple[Teller, io.StringIO]:
    output = io.StringIO()
    return Teller(Console(file=output, highlight=False)), output


@pytest.mark.slow
def test_a_claim_that_is_not_so_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong claim ends the demonstration with exit code 1, the claim and what was found instead; nothing is left behind."""

    class Liar:
        def __init__(self, _directory: Path, _broker: object, teller: Teller) -> None:
            self._teller = teller

        def tell(self) -> None:
            self._teller.claim(True, "one is one")
            self._teller.claim(False, "one is two", instead=1)

    monkeypatch.setattr(command, "Story", Liar)
    teller, output = plain_teller()
    assert command.main(["--directory", str(tmp_path / "demo")], teller) == 1
    assert "NOT SO: one is two. Found instead: 1" in output.getvalue()
    assert "all of them" not in output.getvalue()
    assert not (tmp_path / "demo").exists()


def test_a_broker_that_does_not_start_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that does not start is reported with exit code 1 and the reason that it gave."""
    package = tmp_path / "path" / "diamant"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('no')")
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    teller, output = plain_teller()
    assert command.main(["--directory", str(tmp_path / "demo")], teller) == 1
    assert "the broker did not start: no" in output.getvalue()


def test_a_directory_that_is_there_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An existing directory is refused with exit code 2: the demonstration would remove it at its end."""
    (tmp_path / "mine").write_text("precious")
    with pytest.raises(SystemExit, match="2"):
        command.main(["--directory", str(tmp_path)])
    assert "exists already" in capsys.readouterr().err
    assert (tmp_path / "mine").exists()


def test_texts_are_no_markup() -> None:
    """What a broker answers is printed as it is."""
    teller, output = plain_teller()
    teller.say("[red]as it is[/]")
    teller.claim(True, "[bold]this, too[/]")
    assert "[red]as it is[/]" in output.getvalue()
    assert "[bold]this, too[/]" in output.getvalue()
    with pytest.raises(ClaimFailed, match="not so"):
        teller.claim(False, "not so")
