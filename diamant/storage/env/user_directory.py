"""Directories of the user's own, as the XDG Base Directory Specification names them."""

from __future__ import annotations

import os


def user_directory(variable: str, below_home: str) -> str | None:
    """Return what the variable says, else what is there below the home directory; None where no home is known.

    So it is for user ids that have no account, in containers above all, if HOME is not set. Relative paths are not followed:
    they would lead elsewhere with each directory that a broker is started in.
    """
    places = os.environ.get(variable, ""), os.path.join(os.path.expanduser("~"), below_home)
    return next(filter(os.path.isabs, places), None)
