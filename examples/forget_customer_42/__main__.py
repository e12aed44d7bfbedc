"""`python -m examples.forget_customer_42 [--keep] [--directory DIR]`: see the package.

Exit codes: 0 everything is as it was told; 1 a claim was not so, or something failed; 2 usage.
"""

from __future__ import annotations

import argparse
import io
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from confluent_kafka import KafkaException

from diamant.broker.client.admin import AdminError
from examples.forget_customer_42.broker import BrokerFailed, BrokerProcess
from examples.forget_customer_42.proof import make_key
from examples.forget_customer_42.story import Story
from examples.forget_customer_42.telling import ClaimFailed, Teller


def main(arguments: Sequence[str] | None = None, teller: Teller | None = None) -> int:
    """Tell the story; the exit code."""
    parser = argparse.ArgumentParser("forget_customer_42", description="A shop forgets customer 42, and proves it.")
    parser.add_argument(
        "--keep", action="store_true", help="keep the files: data, copies, certificates and their pages"
    )
    parser.add_argument("--directory", type=Path, help="where; it must not exist (default: a temporary one)")
    options = parser.parse_args(arguments)
    if options.directory is not None and options.directory.exists():
        parser.error(f"{options.directory} exists already: name a directory that does not")
    directory = options.directory or Path(tempfile.mkdtemp(prefix="diamant-demo-"))
    directory.mkdir(parents=True, exist_ok=True)
    try:
        return run(directory, teller or Teller(), is_kept=options.keep)
    finally:
        if not options.keep:
            shutil.rmtree(directory, ignore_errors=True)


def run(directory: Path, teller: Teller, *, is_kept: bool) -> int:
    """Tell the story in a directory of its own; the exit code."""
    began = time.monotonic()
    key = directory / "keys" / "certificate.key"
    make_key(key)
    try:
        with BrokerProcess(directory / "data", key, directory / "broker.log") as broker:
            Story(directory, broker, teller).tell()
    except ClaimFailed as error:
        teller.failed(str(error))
        return 1
    except (AdminError, BrokerFailed, KafkaException, TimeoutError) as error:
        teller.failed(f"it could not go on: {error}")
        return 1
    teller.end(f"All {teller.claims} claims were checked, and hold. It took {time.monotonic() - began:.0f} s.")
    if is_kept:
        teller.say(f"Everything is kept in {directory}; for people: {directory}/certificates/key-gone.html")
    else:
        teller.say("Its files are removed. To keep them, and see the certificates as pages: make demo KEEP=yes")
    return 0


if __name__ == "__main__":
    # What the output cannot show (a tick, where it is no UTF-8) is not a reason to fail.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    # Told to stop, it stops its broker and removes its files as at any other end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
