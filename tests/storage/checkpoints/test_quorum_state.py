"""quorum-state against what Kafka writes."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from diamant.storage.checkpoints.quorum_state import (
    QuorumState,
    format_quorum_state,
    read_quorum_state,
    write_quorum_state,
)
from diamant.storage.env.env import RealEnv
from diamant.storage.errors import CorruptLog

VOTED = UUID(bytes=bytes(range(0x11, 0x21)))
GOLDEN = [
    (
        QuorumState(1, 3, voters=(1,)),
        '{"clusterId":"","leaderId":1,"leaderEpoch":3,"votedId":-1,"appliedOffset":0,'
        '"currentVoters":[{"voterId":1}],"data_version":0}',
    ),
    (
        QuorumState(1, 3),
        '{"leaderId":1,"leaderEpoch":3,"votedId":-1,"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA","data_version":1}',
    ),
    (
        QuorumState(-1, 3, 1, VOTED),
        '{"leaderId":-1,"leaderEpoch":3,"votedId":1,"votedDirectoryId":"ERITFBUWFxgZGhscHR4fIA","data_version":1}',
    ),
]


@pytest.mark.parametrize(("state", "content"), GOLDEN)
def test_content_is_kafkas(env: RealEnv, tmp_path: Path, state: QuorumState, content: str) -> None:
    """Both versions are written as Kafka's FileQuorumStateStore does, and read back."""
    assert format_quorum_state(state).decode() == content
    write_quorum_state(env, str(tmp_path), state)
    assert (tmp_path / "quorum-state").read_text() == content
    assert read_quorum_state(env, str(tmp_path)) == state


def test_a_missing_file_is_epoch_zero(env: RealEnv, tmp_path: Path) -> None:
    """A node that has never voted knows no leader."""
    assert read_quorum_state(env, str(tmp_path)) == QuorumState(-1, 0, -1)


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"data_version":1,"leaderId":1}', GOLDEN[1][1].replace('_version":1', '_version":2'), '{"x'],
)
def test_anything_else_is_refused(env: RealEnv, tmp_path: Path, content: str) -> None:
    """A malformed file, or one of another version, is corrupt."""
    (tmp_path / "quorum-state").write_text(content)
    with pytest.raises(CorruptLog, match="quorum-state"):
        read_quorum_state(env, str(tmp_path))
