"""Tests of several brokers in one process."""
