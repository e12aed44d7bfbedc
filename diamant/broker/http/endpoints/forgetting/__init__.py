"""Erasures, redactions and their certificates over HTTP."""
