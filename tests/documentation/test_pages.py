"""Shape of the pages, the links between them, and the navigation of the site; without mkdocs."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.test_ratchets import AVOIDED

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
LINK = re.compile(r"(?<!\\)\]\(([^)\s]+)\)")
CODE = re.compile(r"^(`{3,})[^\n]*\n.*?^\1$|^(?: {4}|\t)[^\n]*$|(`+)[^\n]*?\2", re.DOTALL | re.MULTILINE)
MAX_LINES = 300
HEADING = re.compile(r"^#{1,6} +(.+?)\s*$", re.MULTILINE)
OF_DOCS = sorted(DOCS.rglob("*.md"))


@cache
def pages() -> list[Path]:
    """Every page of the repository."""
    folders = (ROOT / name for name in ("bench", "docker", "docs", "examples", "tests"))
    return sorted([*ROOT.glob("*.md"), *(page for folder in folders for page in folder.rglob("*.md"))])


@cache
def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as the repository's web view makes them."""
    text = re.sub(r"^(`{3,})[^\n]*\n.*?^\1$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    found: list[str] = []
    for heading in HEADING.findall(text):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
        anchor = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        same = sum(re.fullmatch(rf"{re.escape(anchor)}(_\d+)?", one) is not None for one in found)
        found.append(f"{anchor}_{same}" if same else anchor)
    return set(found)


@pytest.mark.parametrize("page", pages(), ids=str)
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


def shown(path: Path) -> str:
    """Return a page as the test's id."""
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", OF_DOCS, ids=shown)
def test_a_page_can_be_read_at_night(page: Path) -> None:
    """It has 300 lines at most, begins with its title and what it is for, and lists its sections before the first one.

    Rows of a table that `make docs` writes do not count: they are looked up, not read.
    """
    text = page.read_text()
    is_generated = "Written by `make docs`" in text
    assert sum(not (is_generated and line.startswith("|")) for line in text.splitlines()) <= MAX_LINES
    title, empty, purpose = text.splitlines()[:3]
    assert title.startswith("# ")
    assert not empty
    assert re.match(r"[A-Z*`<]", purpose)
    head, *sections = re.split(r"^## ", CODE.sub("", text), flags=re.MULTILINE)
    if len(sections) > 3 and not is_generated:
        assert len(re.findall(r"\]\(#", head)) >= 3, "no list of contents"


def test_the_site_has_every_page() -> None:
    """The navigation in mkdocs.yml names each page of docs/ once, and pages of the repository that exist."""
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    named: list[str] = []

    def name_all(found: str | list[Any] | dict[str, Any]) -> None:
        if isinstance(found, str):
            named.append(found)
            return
        for one in found if isinstance(found, list) else found.values():
            name_all(one)

    name_all(config["nav"])
    own = [name for name in named if not name.startswith("repository/")]
    assert sorted(own) == sorted(str(page.relative_to(DOCS)) for page in OF_DOCS)
    assert [name for name in set(named) - set(own) if not (ROOT / name.removeprefix("repository/")).exists()] == []


def test_the_start_page_has_every_page() -> None:
    """docs/README.md links to each page."""
    links = {(DOCS / link.partition("#")[0]).resolve() for link in LINK.findall((DOCS / "README.md").read_text())}
    assert [page for page in OF_DOCS if page not in links and page != DOCS / "README.md"] == []


def test_pages_use_the_words_of_the_field() -> None:
    """None of the words that `tests/test_ratchets.py` counts in the package; `undertaking` is a field of a job."""
    words = [word for word in AVOIDED if not word.startswith(("undertaking", "a module"))]
    found = re.compile(rf"\b({'|'.join(words)})\b", re.IGNORECASE)
    assert [(shown(page), one) for page in OF_DOCS for one in found.findall(page.read_text())] == []


def test_the_navigation_of_the_site_is_grouped_as_the_start_page() -> None:
    """The navigation has the sections and pages of the start page in the same order, and the groups of the how-to guides."""
    found, group = list[str](), ""
    for line in (ROOT / "docs/README.md").read_text().splitlines():
        if heading := re.fullmatch(r"## (.+)|\*\*(.+)\*\*", line):
            group = heading[1] or heading[2]
            found.append(group)
        found += [page for page in re.findall(r"\]\((\w[^)#]*\.md)\)", line) if group]
    navigation = (ROOT / "mkdocs.yml").read_text().partition("- Start: README.md\n")[2].partition("  - Repository:")[0]
    assert re.findall(r"- ([^\n]+?):?\n", navigation) == found
