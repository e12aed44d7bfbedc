"""Links between the pages, in the repository and on the site alike: without mkdocs, and in a moment."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
LINK = re.compile(r"(?<!\\)\]\(([^)\s]+)\)")
CODE = re.compile(r"^(`{3,})[^\n]*\n.*?^\1$|^(?: {4}|\t)[^\n]*$|(`+)[^\n]*?\2", re.DOTALL | re.MULTILINE)
HEADING = re.compile(r"^#{1,6} +(.+?)\s*$", re.MULTILINE)


@cache
def pages() -> list[Path]:
    """Every page of the repository."""
    folders = (ROOT / name for name in ("bench", "docker", "docs", "examples", "tests"))
    return sorted([*ROOT.glob("*.md"), *(page for folder in folders for page in folder.rglob("*.md"))])


@cache
def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as the repository's web view makes them."""
    text = re.sub(r"^(`{3,})[^\n]*\n.*?^\1$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    found: list[str] = []
    for heading in HEADING.findall(text):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
        anchor = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        same = sum(re.fullmatch(rf"{re.escape(anchor)}(_\d+)?", one) is not None for one in found)
        found.append(f"{anchor}_{same}" if same else anchor)
    return set(found)


@pytest.mark.parametrize("page", pages(), ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """Each relative link names a file of the repository, and an anchor that its page has."""
    wrong = []
    for link in LINK.findall(CODE.sub("", page.read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or ROOT not in target.parents:
            wrong.append(link)
        elif anchor and anchor not in anchors(target):
            wrong.append(f"{link}: {sorted(anchors(target))}")
    assert wrong == []
