"""Figures of the records in partitions for the page: counts by `cleaner/queries`, scheduled and cached."""
