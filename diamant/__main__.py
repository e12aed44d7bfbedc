"""The entry point of `diamant` and `python -m diamant`. Ctrl-C ends it without a traceback, even during imports."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line."""
    try:
        from diamant.broker.cli import main as command_line

        command_line()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
