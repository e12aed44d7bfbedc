"""The multiplier of the rolling hash, for the kernels and for Python."""

from __future__ import annotations

MULTIPLIER = 0x9E3779B97F4A7C15
