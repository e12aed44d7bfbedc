"""The errors of Spark itself. Damage in a log is `CorruptLog`, as everywhere."""

from diamant.cleaner.runners.contract import RunnerFailed
from diamant.storage.errors import WrongInput


class SparkError(RunnerFailed):
    """A job failed on Spark through no fault of the log. The text says what to do about it."""


class SparkUnavailable(SparkError):
    """Spark is not usable: no Java or PySpark, no answer from the master, or executors with other software."""


class SparkMisuse(SparkError, WrongInput):
    """A path, a topic, an option or a pattern is wrong; no job has begun."""


class SegmentChanged(SparkError):
    """A file has changed since it was planned: it was cleaned, deleted or truncated."""
