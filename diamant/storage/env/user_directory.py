"""The user's directories of the XDG Base Directory Specification."""

from __future__ import annotations

import os


def user_directory(variable: str, below_home: str) -> str | None:
    """Return the directory that an environment variable names, otherwise the default below the home directory.

    Returns None if there is no home directory: HOME is unset and the user id has no account, as is common in containers. Relative
    paths are ignored, because they would depend on the directory in which the broker starts.
    """
    places = os.environ.get(variable, ""), os.path.join(os.path.expanduser("~"), below_home)
    return next(filter(os.path.isabs, places), None)
