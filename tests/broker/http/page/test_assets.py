"""The files of the page."""

from __future__ import annotations

import json
import re
from hashlib import sha256
from pathlib import Path

import diamant.broker.http.page as package

STATIC = Path(package.__path__[0]) / "static"
TEMPLATES = Path(package.__path__[0]) / "templates"


def test_libraries_are_the_releases_that_are_named() -> None:
    """Each library has its version, licence and checksums, and there are no other files of third parties."""
    own = {"page.css", "page.js", "charts.js", "diamant.svg", "vendored.json"}
    named = {}
    for one in json.loads((STATIC / "vendored.json").read_text()):
        assert re.fullmatch(r"\d+\.\d+\.\d+", one["version"])
        assert one["licence"] in {"0BSD", "MIT"}
        assert any(name.endswith(".LICENSE") for name in one["files"])
        named |= {name: file["sha256"] for name, file in one["files"].items()}
    found = {path.name: sha256(path.read_bytes()).hexdigest() for path in STATIC.iterdir() if path.name not in own}
    assert found == named


def test_templates_have_no_inline_script_or_style() -> None:
    """The pages' security policy would block them."""
    for path in TEMPLATES.iterdir():
        text = path.read_text()
        assert not re.search(r"\sstyle=|\son\w+=|<style|javascript:|\|safe|autoescape false", text), path.name
        for script in re.findall(r"<script[^>]*>", text):
            assert "src=" in script
        assert not re.search(r"(?:src|href)=\"(?:https?:)?//", text), path.name
