"""The messages between a broker and the worker process of its cleaner, one JSON object per line.

    to the worker, on its standard input
      {"type": "clean", "round": 1, "plan": "<CleanPlan.to_json>", "memory_limit_bytes": 650000000}
      {"type": "facts", "round": 1, "task": {...}, "memory_limit_bytes": 900000000}     a FactsTask
      {"type": "move", "moves": [...]}                          the fields of Moves: execute them, even during a round
      {"type": "cancel", "round": 1}                            end that round, if it is in progress
      end of file                                               end the current round, and exit

    from the worker
      {"type": "ready", "pid": 4711}                            once, when the engine is loaded
      {"type": "progress", "round": 1, "bytes": 1048576}        read and written so far; twice a second at most
      {"type": "output", "round": 1, "output": {...}}           an OutputSegment, in the order of offsets
      {"type": "moved"}                                         the answer to a move: all moves are done
      {"type": "not moved", "kind": "os", ...}                  the other answer; the fields are those of the error
      {"type": "result", "round": 1, "result": {...}}           the round has succeeded; the CleanResult without its outputs,
                                                                or {} for facts
      {"type": "error", "round": 1, "kind": "...", ...}         the round has failed; the fields are those of the error

Both sides run the same version of the program.
"""

from __future__ import annotations

import traceback
from dataclasses import asdict

from diamant.cleaner.facts.filter_making import FactsTask
from diamant.cleaner.rules.result import CleaningAborted, OutputOverflow
from diamant.cleaner.runners.contract import MemoryLimit, RunnerFailed
from diamant.json_types import JsonObject
from diamant.storage.errors import CorruptLog, RecordTooLarge

MAX_LINE_BYTES = 16 * 1024 * 1024
"""Maximum length of a worker's message. An output lists its sources, at 20 bytes each. Messages to the worker may be longer."""


def facts_task_fields(task: FactsTask) -> JsonObject:
    """Return the fields of the message that contains a task."""
    return {**asdict(task), "hash_key": task.hash_key.hex()}


def facts_task_from(fields: JsonObject) -> FactsTask:
    """Return the task with these fields, as made by `facts_task_fields`."""
    return FactsTask(**{**fields, "hash_key": bytes.fromhex(fields["hash_key"])})


def error_fields(error: BaseException, memory_limit_bytes: int) -> JsonObject:
    """Return the fields of the message that reports `error`."""
    match error:
        case CleaningAborted():
            return {"kind": "aborted", "reason": str(error)}
        case CorruptLog():
            return {"kind": "corrupt", "path": error.path, "position": error.position, "reason": error.reason}
        case RecordTooLarge():
            return {"kind": "record", "path": error.path, "position": error.position, "reason": error.reason}
        case OutputOverflow():
            return {"kind": "overflow", "path": error.path, "reason": error.reason}
        case MemoryError():
            return {"kind": "memory", "reason": str(error), "limit": memory_limit_bytes}
        case OSError() if error.errno is not None:
            return {"kind": "os", "errno": error.errno, "reason": error.strerror, "path": error.filename}
        case _:
            return {"kind": "other", "reason": "".join(traceback.format_exception(error)).strip()}


def error_from(fields: JsonObject, what: str) -> Exception:
    """Return the error with these fields, as made by `error_fields`; `what` names the partition or segment."""
    match fields["kind"]:
        case "aborted":
            return CleaningAborted(fields["reason"])
        case "corrupt":
            return CorruptLog(fields["path"], fields["position"], fields["reason"])
        case "record":
            return RecordTooLarge(fields["path"], fields["position"], fields["reason"])
        case "overflow":
            return OutputOverflow(fields["path"], fields["reason"])
        case "memory":
            detail = f": {fields['reason']}" if fields["reason"] else ""
            return MemoryLimit(f"{what}: the worker needs more than its limit of {fields['limit']} bytes{detail}")
        case "os":
            # The constructor returns the subclass for the number, such as FileNotFoundError.
            return OSError(fields["errno"], fields["reason"], fields["path"])
        case _:
            return RunnerFailed(f"{what}: the worker failed:\n{fields['reason']}")
