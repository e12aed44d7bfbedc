"""Deletions that groups have missed."""
