"""Frames before authentication, at random and by the million, in process."""

from __future__ import annotations

import pytest

from tests.broker.security.sasl.fuzzing import fuzz


@pytest.mark.parametrize(
    ("frames", "growth_bytes"), [(20_000, 16 << 20), pytest.param(1_000_000, 4 << 20, marks=pytest.mark.long)]
)
async def test_frames_at_random(frames: int, growth_bytes: int) -> None:
    """Each is refused or answered correctly: only the three APIs are decoded, some clients come in, and memory does not grow."""
    figures = await fuzz(frames, seed=1)
    assert set(figures.decoded) == {17, 18, 36}
    assert 0 < figures.authenticated < figures.connections / 20
    assert figures.resident_bytes[-1] - figures.resident_bytes[2] < growth_bytes
