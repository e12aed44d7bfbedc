"""Certificates: form and signature (`certificate`), keys, files, verification against the data, and page."""
