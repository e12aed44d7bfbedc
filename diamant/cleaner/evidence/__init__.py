"""Evidence of an erasure: what is looked for, the scan of a whole data directory, the certificate and its verification."""
