"""Hostile peers: a broker under attack, and what a second client, its memory, descriptors and log feel of it."""
