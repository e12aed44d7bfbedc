"""The errors of Spark itself; damage in a log is `CorruptLog` here as everywhere."""

from __future__ import annotations

from diamant.cleaner.runners.contract import RunnerFailed


class SparkError(RunnerFailed):
    """Spark cannot do what was asked, and the log is not at fault. The text says what to do about it."""


class SparkUnavailable(SparkError):
    """There is no usable Spark: no Java or PySpark, a master that does not answer, executors with other software."""


class SegmentChanged(SparkError):
    """A file is not the one that the plan was made for: it was cleaned, deleted or truncated since."""
