"""Fetches the releases that `static/vendored.json` names with npm, and puts their files into `static/`: `make vendor`.

To move to another release, change its version there, run this, and look at what it says of the checksums.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import tempfile
from hashlib import sha256
from pathlib import Path

STATIC = Path(__file__).parents[4] / "diamant/broker/http/page/static"
TABLE = STATIC / "vendored.json"


def main() -> None:
    """Fetch all; the exit code is 1 if a file is not the one that is named."""
    table = json.loads(TABLE.read_text())
    differ = []
    for one in table:
        release = f"{one['name']}@{one['version']}"
        with tempfile.TemporaryDirectory() as directory:
            subprocess.run(["npm", "pack", "--silent", release], cwd=directory, check=True, stdout=subprocess.DEVNULL)
            [archive] = Path(directory).iterdir()
            with tarfile.open(archive) as found:
                for name, file in one["files"].items():
                    member = found.extractfile(f"package/{file['from']}")
                    assert member is not None
                    data = member.read()
                    (STATIC / name).write_bytes(data)
                    digest = sha256(data).hexdigest()
                    print(f"{release}: {name}, {len(data)} bytes, SHA-256 {digest}")
                    if digest != file["sha256"]:
                        differ.append(name)
    if differ:
        sys.exit(f"{', '.join(differ)}: another SHA-256 than in {TABLE}. With another version, change it there")


if __name__ == "__main__":
    main()
