"""The program of the single file (`make single`): `diamant`, and for its own workers a Python.

A broker starts its workers by `sys.executable -P -c PROGRAM`, and here that is the single file itself.
"""

from __future__ import annotations

import sys

from diamant.__main__ import main

if sys.argv[1:3] == ["-P", "-c"]:
    program = sys.argv[3]
    sys.argv[:4] = ["-c"]
    exec(compile(program, "<string>", "exec"))  # noqa: S102  (as `python -c` does)
else:
    main()
