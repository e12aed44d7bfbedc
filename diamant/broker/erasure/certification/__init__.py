"""The evidence in certificates: scans and digests of the data directory, the signing key, and the stored certificates."""
