"""Certificates: signing, files, verification, page."""
