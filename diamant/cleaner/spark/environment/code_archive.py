"""The package's own code as a .zip that Spark ships to its executors.

A zip, since Python imports from one where it lies; a wheel under its own name is taken by Spark as well and then silently not
imported. The name holds a digest of the code, by which an executor tells whose code it runs:

    diamant-code-<16 hex>.zip/diamant/...

The same code gives the same bytes: no times, files in order.
"""

from __future__ import annotations

import hashlib
import re
import zipfile
from functools import cache
from pathlib import Path

PREFIX = "diamant-code-"
_NAME = re.compile(rf"{PREFIX}([0-9a-f]{{16}})\.zip")
_PACKAGE = Path(__file__).parents[4]
"""The package `diamant`; in an executor it lies in the zip."""
_EARLIEST = (1980, 1, 1, 0, 0, 0)


def write_code_archive(directory: str | Path) -> Path:
    """Write the zip into `directory` and return its path. About 1 MB, a tenth of a second."""
    path = Path(directory) / f"{PREFIX}{code_digest()}.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, source in _sources():
            archive.writestr(zipfile.ZipInfo(name, _EARLIEST), source.read_bytes(), zipfile.ZIP_DEFLATED)
    return path


@cache
def code_digest() -> str:
    """Return 16 hex digits that tell this code from any other, wherever it was imported from."""
    match = _NAME.search(str(_PACKAGE))
    if match is not None:
        return match[1]
    digest = hashlib.sha256()
    for name, source in _sources():
        content = source.read_bytes()
        digest.update(f"{name}\n{len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()[:16]


def _sources() -> list[tuple[str, Path]]:
    """Return the names in the archive and the files, in order."""
    return sorted((f"diamant/{path.relative_to(_PACKAGE).as_posix()}", path) for path in _PACKAGE.rglob("*.py"))
