"""An S3 object store: moto's server, in a process of its own on the loopback."""

from __future__ import annotations

import subprocess
import sys
from functools import cached_property
from pathlib import Path
from typing import Any

from diamant.cleaner.spark.environment.locations import Location

_PROGRAM = """
import sys
from moto.server import ThreadedMotoServer

server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""
SECRET = "not-a-secret"


class ObjectStore:
    """Started by `with`; empty, and nothing of it is kept."""

    def __init__(self, log: Path) -> None:
        self._log = log

    def __enter__(self) -> ObjectStore:
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, self._log.read_text()
        self.address = f"127.0.0.1:{int(line)}"
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop the server."""
        self._process.communicate()

    def uri(self, path: str, **options: str) -> str:
        """Return the URI of `bucket/prefix`, with credentials and options."""
        given = {"scheme": "http", "endpoint_override": self.address, "region": "us-east-1", **options}
        return f"s3://tester:{SECRET}@{path}?" + "&".join(f"{name}={value}" for name, value in given.items())

    def make_bucket(self, name: str) -> None:
        """Make an empty one."""
        self._filesystem.create_dir(name)

    def has_bucket(self, name: str) -> bool:
        """Return whether a bucket exists."""
        from pyarrow import fs

        return bool(self._filesystem.get_file_info(name).type != fs.FileType.NotFound)

    def drop_bucket(self, name: str) -> None:
        """Remove one with all that is in it."""
        self._filesystem.delete_dir(name)

    def keys(self, bucket: str) -> list[str]:
        """Return the files in a bucket, without the bucket."""
        from pyarrow import fs

        found = self._filesystem.get_file_info(fs.FileSelector(bucket, recursive=True))
        return sorted(one.path.removeprefix(f"{bucket}/") for one in found if one.type == fs.FileType.File)

    def copy_in(self, source: Path, path: str) -> None:
        """Copy a directory of this machine to `bucket/prefix`."""
        target = Location.parse(self.uri(path))
        for file in sorted(source.rglob("*")):
            if file.is_file():
                place = target
                for part in file.relative_to(source).parts:
                    place = place.child(part)
                place.write_bytes(file.read_bytes())

    @cached_property
    def _filesystem(self) -> Any:
        from pyarrow import fs

        return fs.S3FileSystem(
            access_key="tester",
            secret_key=SECRET,
            endpoint_override=self.address,
            scheme="http",
            region="us-east-1",
            allow_bucket_creation=True,
            allow_bucket_deletion=True,
        )
