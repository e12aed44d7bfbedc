"""The user's directories of the XDG Base Directory Specification."""

from __future__ import annotations

import os


def user_directory(variable: str, below_home: str) -> str | None:
    """Return the directory named by the variable, else the default below the home directory; None without a home.

    User ids without an account have no home if HOME is unset, most often in containers. Relative paths are ignored, because
    they would depend on the directory in which the broker starts.
    """
    places = os.environ.get(variable, ""), os.path.join(os.path.expanduser("~"), below_home)
    return next(filter(os.path.isabs, places), None)
