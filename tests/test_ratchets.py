"""Counts of what is to become less: each may only fall, and is lowered here when it has fallen."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_LINES = 70
MAX_CLASS_LINES = 300

LONG = {"iter_payload", "read_run", "walk_bytes", "walk_records"}
"""Functions of more than `MAX_LINES` lines: kernels and codecs for the most part. The list only shrinks."""
LARGE: set[str] = set()
"""Classes of more than `MAX_CLASS_LINES` lines. The list only shrinks."""
PRIVATE: set[str] = set()
"""Private names that another module imports."""
INHERITED: set[str] = set()
"""Classes that inherit from a class of ours that inherits from one itself, errors apart."""
MOST = {"dict[str, Any]": 11, "request: Any": 0, "classes of one name": 0, "monkeypatch.setattr": 52}

QUESTION = re.compile(r"\W*(What|Who|Whether|Which|How|When|Where)\b")
IMPORT = re.compile(r"^ *from diamant\S* import (\([^)]*\)|.*)", re.MULTILINE)
CLASS = re.compile(r"^class ([^\W_]\w*)", re.MULTILINE)
AVOIDED = {
    "also if": 4, "anew": 0, "any more": 20, "at hand": 4, "be it": 0, "come to no end": 1, "for who": 0, "go on": 5,
    "goes on": 1, "gone on": 0, "in the making": 0, "let go": 0, "meanwhile": 0, "nobody": 0, "somebody": 0, "take note": 0,
    "under way": 0, "undertaking": 10, "undertakings": 0, "whoever": 0, "a module that begins with a question": 0,
}  # fmt: skip
"""Words for which the field has plainer ones: even if, again, no longer, continue, release, in progress, job, caller."""


@cache
def texts(folder: str) -> dict[Path, str]:
    """Return the modules below a folder. To look for a pattern takes a tenth of parsing them."""
    return {path: path.read_text() for path in sorted((ROOT / folder).rglob("*.py"))}


@cache
def modules() -> list[ast.Module]:
    """Return the modules of the package, parsed."""
    return [ast.parse(text) for text in texts("diamant").values()]


def test_no_name_that_is_private_is_imported() -> None:
    """A leading underscore means: of this module."""
    imported = {
        name.split()[0]
        for text in texts("diamant").values()
        for names in IMPORT.findall(text)
        for name in names.strip("()").split(",")
        if re.match(r"\s*_(?!_)", name)
    }
    assert imported == PRIVATE


def test_functions_are_short() -> None:
    """No function has more than 70 lines but those that are listed."""
    found = {
        node.name
        for tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno + 1 > MAX_LINES
    }
    assert found == LONG


def test_classes_are_short() -> None:
    """No class has more than 300 lines but those that are listed: it would hold a second concept."""
    found = {
        node.name
        for tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and (node.end_lineno or 0) - node.lineno + 1 > MAX_CLASS_LINES
    }
    assert found == LARGE


def test_inheritance_is_shallow() -> None:
    """No class but errors, Protocols and those listed inherits from a class that inherits; composition takes its place."""
    bases = {
        node.name: {ast.unparse(base).split("[")[0].rpartition(".")[2] for base in node.bases}
        for tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }

    def ancestors(name: str) -> set[str]:
        return {name}.union(*(ancestors(base) for base in bases.get(name, set())))

    def is_error(name: str) -> bool:
        return bool(
            ancestors(name) & {"Exception", "OSError", "ValueError", "RuntimeError", "TypeError", "BaseException"}
        )

    deep = {
        name
        for name, own in bases.items()
        if not is_error(name) and any(bases.get(base, set()) & bases.keys() for base in own)
    }
    assert deep == INHERITED


def test_counts_only_fall() -> None:
    """Lower the number here when it has fallen."""
    source = "".join(texts("diamant").values())
    tests = "".join(text for path, text in texts("tests").items() if path != Path(__file__))
    names = Counter(CLASS.findall(source))
    found = {
        "dict[str, Any]": source.count("dict[str, Any]"),
        "request: Any": source.count("request: Any"),
        "classes of one name": sum(count > 1 for count in names.values()),
        "monkeypatch.setattr": tests.count("monkeypatch.setattr"),
    }
    assert {what: count for what, count in found.items() if count > MOST[what]} == {}


def test_the_field_s_words_are_used() -> None:
    """`AVOIDED` says how often the package may have each word; docstrings of modules begin with what a module is or does."""
    text = "\n".join(texts("diamant").values()).lower()
    # As \b before the words, but a pattern that begins with its letters is looked for twenty times as quickly.
    found = {words: len(re.findall(rf"{words}(?<!\w{words})\b", text)) for words in AVOIDED}
    asking = (QUESTION.match(text) for text in texts("diamant").values())
    found["a module that begins with a question"] = sum(match is not None for match in asking)
    assert {words: count for words, count in found.items() if count > AVOIDED[words]} == {}
