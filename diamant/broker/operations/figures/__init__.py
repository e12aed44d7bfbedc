"""Record counts of partitions for the web page: made by `cleaner/queries`, scheduled and cached here."""
