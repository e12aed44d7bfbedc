"""Evidence for certificates: scans and digests of the data directory, signing keys, the certificates there are."""
