"""The errors of Spark itself. Damage in a log raises `CorruptLog`, as it does without Spark."""

from diamant.cleaner.runners.contract import RunnerFailed
from diamant.storage.errors import WrongInput


class SparkError(RunnerFailed):
    """A job failed on Spark through no fault of the log. The message says what to do about it."""


class SparkUnavailable(SparkError):
    """Spark is not usable: there is no Java or PySpark, the master does not answer, or an executor has different software."""


class SparkMisuse(SparkError, WrongInput):
    """A path, a topic, an option or a pattern is wrong; no job has begun."""


class SegmentChanged(SparkError):
    """A file was cleaned, deleted or truncated after the job was planned."""
