"""Evidence for certificates: scans and digests of the data directory, signing keys, stored certificates."""
