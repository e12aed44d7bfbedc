"""Certificates: their format and signature (`certificate`), keys, files, HTML page, and verification against the data."""
