"""Tests of the commands that run a broker."""
