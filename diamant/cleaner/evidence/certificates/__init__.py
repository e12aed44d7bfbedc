"""Certificates: their form and signature (`certificate`), keys, files, verification against the data, page."""
