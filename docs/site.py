"""Hook of mkdocs: links as the repository's web view follows them, the pages that lie outside of docs/, and search in files."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
OUTSIDE = (
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "bench/README.md",
    "docker/README.md",
    "examples/failover/README.md",
    "examples/programs/README.md",
    "examples/tests/README.md",
)
"""Pages of the repository that the site has, too, below `repository/`."""
LINK = re.compile(r"(?<![!\\])\[([^]\n]*)\]\(([^)#:\s]+)(#[^)\s]*)?\)")


def slug(text: str, separator: str) -> str:
    """The anchor of a heading: lower case, without punctuation, a hyphen for each blank."""
    return re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", separator)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Have headings the anchors that links in the repository use."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = slug
    # The plugin `offline` would load its worker for pages opened from files from another host.
    config.extra["polyfills"] = ["worker-of-files.js"]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie outside of docs/."""
    for name in OUTSIDE:
        files.append(File.generated(config, f"repository/{name}", abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Turn links between files of the repository into links between pages; what the site does not have becomes text."""
    uri = page.file.src_uri
    source = uri.removeprefix("repository/") if uri.startswith("repository/") else f"docs/{uri}"

    def link(found: re.Match[str]) -> str:
        words, name, anchor = found[1], found[2], found[3] or ""
        target = os.path.normpath(os.path.join(os.path.dirname(source), name))
        if target in OUTSIDE:
            target = f"repository/{target}"
        elif target.startswith("docs/"):
            target = target.removeprefix("docs/")
        else:
            return words
        return f"[{words}]({os.path.relpath(target, os.path.dirname(uri) or '.')}{anchor})"

    return LINK.sub(link, markdown)
