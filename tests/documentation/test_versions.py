"""The version, and what its page, the changelog and the security policy say of it."""

from __future__ import annotations

import json
import re
from pathlib import Path

from click.testing import CliRunner

from diamant.broker.cli import main
from diamant.broker.commands.terminal.build_facts import BuildFacts
from diamant.version import __version__

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/reference/versions.md").read_text()
MINOR = __version__.rpartition(".")[0]


def test_the_changelog_begins_with_this_version() -> None:
    """Users find what is new in the section of the version that they have; it has a date once it is released."""
    sections = re.findall(r"^## (\S+) \((.+)\)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert sections[0][0] == __version__
    assert re.fullmatch(r"not released yet|\d{4}-\d\d-\d\d", sections[0][1])
    assert [version for version, _ in sections] == sorted((version for version, _ in sections), reverse=True)


def test_the_security_policy_supports_this_version() -> None:
    """The first row of its table is the minor version."""
    rows = re.findall(r"^\| (\d\.\d+) \| (.+) \|$", (ROOT / "SECURITY.md").read_text(), re.MULTILINE)
    assert rows[0] == (MINOR, "yes")


def test_the_facts_about_an_installation_are_documented() -> None:
    """The page's example and its table have the fields of `diamant --version --json`."""
    facts = json.loads(CliRunner().invoke(main, ["--version", "--json"]).stdout)
    (example,) = re.findall(r"^```json\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    fields = [*BuildFacts.__annotations__]
    assert [*facts] == [*json.loads(example)] == re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE) == fields
    assert facts["version"] == __version__
    assert {"kio", "aiohttp"} <= {*facts["libraries"]}
