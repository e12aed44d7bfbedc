"""`quorum-state`: the epoch of the metadata log's quorum (Kafka's FileQuorumStateStore, QuorumStateData).

One JSON object, without a line end. The version is 1 if the voters are in the log (kraft.version 1), and 0 if they are in the
configuration:

    {"leaderId":1,"leaderEpoch":3,"votedId":-1,"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA","data_version":1}
    {"clusterId":"","leaderId":1,"leaderEpoch":3,"votedId":-1,"appliedOffset":0,"currentVoters":[{"voterId":1}],
     "data_version":0}                                                                               (on one line)

The file must be durable before the first record of its epoch is written, because no epoch may be reused after a crash.
"""

from __future__ import annotations

import json
from typing import NamedTuple
from uuid import UUID

from diamant.storage import names
from diamant.storage.env.env import Env
from diamant.storage.errors import CorruptLog
from diamant.storage.uuid_text import ZERO_ID, uuid_from_text, uuid_to_text

NO_NODE = -1


class QuorumState(NamedTuple):
    """The last known election. `voters` is None if the file has version 1, which does not list them."""

    leader_id: int = NO_NODE
    leader_epoch: int = 0
    voted_id: int = NO_NODE
    voted_directory_id: UUID = ZERO_ID
    voters: tuple[int, ...] | None = None


def format_quorum_state(state: QuorumState) -> bytes:
    """Return the file's content: version 0 if the state has voters, else version 1."""
    values: dict[str, object]
    if state.voters is None:
        values = {
            "leaderId": state.leader_id,
            "leaderEpoch": state.leader_epoch,
            "votedId": state.voted_id,
            "votedDirectoryId": uuid_to_text(state.voted_directory_id),
            "data_version": 1,
        }
    else:
        values = {
            "clusterId": "",
            "leaderId": state.leader_id,
            "leaderEpoch": state.leader_epoch,
            "votedId": state.voted_id,
            "appliedOffset": 0,
            "currentVoters": [{"voterId": voter} for voter in state.voters],
            "data_version": 0,
        }
    return json.dumps(values, separators=(",", ":")).encode("ascii")


def write_quorum_state(env: Env, directory: str, state: QuorumState) -> None:
    """Replace the file of the metadata log in `directory`, durably; blocks on the disk."""
    env.write_atomically(f"{directory}/{names.QUORUM_STATE}", format_quorum_state(state))


def read_quorum_state(env: Env, directory: str) -> QuorumState:
    """Read the quorum state of the metadata log in `directory`; if there is no file, return epoch 0 without a leader.

    Raises CorruptLog unless the file is valid and has version 0 or 1.
    """
    path = f"{directory}/{names.QUORUM_STATE}"
    try:
        content = env.read_bytes(path)
    except FileNotFoundError:
        return QuorumState()
    try:
        values = json.loads(content)
        version = values["data_version"]
        voters = tuple(voter["voterId"] for voter in values["currentVoters"] or ()) if version == 0 else None
        state = QuorumState(
            int(values["leaderId"]),
            int(values["leaderEpoch"]),
            int(values["votedId"]),
            uuid_from_text(values["votedDirectoryId"]) if version == 1 else ZERO_ID,
            voters,
        )
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptLog(path, 1, f"expected a JSON object with data_version 0 or 1: {error!r}") from None
    if version not in (0, 1):
        raise CorruptLog(path, 1, f"data_version is {version}, expected 0 or 1")
    return state
