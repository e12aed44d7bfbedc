"""What earlier runs of a broker have left at the staging place, removed when a broker starts.

A directory is swept by a thread of the broker. For a place elsewhere (s3:) that would load pyarrow, some 50 MB which an idle
broker does without: so a child process does it, within `TIMEOUT_S`. The URI, which may be secret, goes to its standard input.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path

from diamant.cleaner.spark.staging import staging_root, sweep
from diamant.storage.env import Env, RealEnv
from diamant.storage.errors import StorageError

logger = logging.getLogger(__name__)

TIMEOUT_S = 60.0
_PROGRAM = (
    "import os, sys; os.nice(10); place = sys.argv[1]; place in sys.path or sys.path.insert(0, place); "
    "from diamant.cleaner.spark.staging_sweep import main; sys.exit(main())"
)
_MAX_TEXT = 500


def sweep_in_background(env: Env, log_directory: str, staging: str) -> None:
    """Sweep (`staging.sweep`), and tell what came of it; blocks, for `TIMEOUT_S` at most if the place is elsewhere."""
    try:
        if staging_root(staging).is_local:
            count = sweep(env, log_directory, staging)
        else:
            count = _sweep_elsewhere(log_directory, staging)
    except (OSError, StorageError, subprocess.SubprocessError) as error:
        logger.warning("what earlier jobs may have left at the staging place is not removed: %s", _text(error))
    else:
        if count:
            logger.info("%d places of earlier jobs on Spark removed at the staging place", count)


def _sweep_elsewhere(log_directory: str, staging: str) -> int:
    done = subprocess.run(
        [sys.executable, "-P", "-c", _PROGRAM, str(Path(__file__).resolve().parents[3])],
        input=json.dumps({"log_directory": log_directory, "staging": staging}),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise StorageError(done.stderr.strip().rpartition("\n")[2])
    return int(done.stdout)


def _text(error: Exception) -> str:
    if isinstance(error, subprocess.TimeoutExpired):
        return f"it does not answer within {TIMEOUT_S:g} s"
    return str(error)[:_MAX_TEXT]


def main() -> int:
    """Be the child: prints how many places it has removed."""
    fields = json.load(sys.stdin)
    try:
        print(sweep(RealEnv(), fields["log_directory"], fields["staging"]))
    except (OSError, StorageError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0
