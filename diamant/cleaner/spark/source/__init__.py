"""The data source `kafka-log`: record batches as rows."""
