"""`diamant.Admin`'s operations for clusters whose brokers are not Diamant, with `Admin`'s arguments, errors and responses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from diamant.broker.client.admin import Admin, AdminError
from diamant.broker.client.kafka_client import KafkaClient, KafkaRefusal
from diamant.broker.client.kafka_connection import ConnectionFailed
from diamant.broker.clusters import operations
from diamant.broker.clusters.erasing import Agree
from diamant.broker.operation_errors import OperationError, code_of_kafka_error
from diamant.broker.record_json import parse_key
from diamant.duration import Duration, seconds_of

if TYPE_CHECKING:
    from diamant.json_types import JsonObject, Key, OnProgress


@contextmanager
def connected(admin: Admin) -> Iterator[KafkaClient]:
    """Yield a client of the admin's cluster, and turn errors into AdminError."""
    try:
        with admin.kafka_client() as client:
            client.any_broker()
            yield client
    except OperationError as error:
        raise AdminError(str(error), status=error.status, code=error.code) from None
    except KafkaRefusal as error:
        raise AdminError(str(error), code=code_of_kafka_error(error.code)) from None
    except ConnectionFailed as error:
        raise AdminError(str(error), code=error.code) from None


def compact(
    admin: Admin,
    *,
    topic: str,
    partition: int | None = None,
    until: str = "clean",
    force: bool = False,
    wait: bool = True,
    engine: str | None = None,
    timeout: Duration | None = None,
    on_progress: OnProgress | None = None,
    on_note: Callable[[str], object] = lambda _: None,
) -> JsonObject:
    """Compact a topic with `clusters.operations.compact`."""
    _refuse_engine(engine)
    if until != "clean" or not wait:
        raise AdminError(
            "until: expected clean, since this cluster decides when tombstones are removed (delete.retention.ms)",
            status=400,
            code="bad-argument",
        )
    with connected(admin) as client:
        return operations.compact(
            client,
            topic,
            partition=partition,
            force=force,
            timeout_s=_timeout_s(admin, timeout),
            on_progress=on_progress,
            on_note=on_note,
        )


def erase(
    admin: Admin,
    *,
    key: Key,
    topics: str | Sequence[str],
    reason: str,
    reference: str = "",
    now: bool = False,
    confirm_groups_behind: bool = False,
    force: bool = False,
    engine: str | None = None,
    dry_run: bool = False,
    agree: Agree | None = None,
    timeout: Duration | None = None,
    on_progress: OnProgress | None = None,
) -> JsonObject:
    """Erase a key with `clusters.operations.erase`. `force` is implied: min.compaction.lag.ms is always lowered, too."""
    _refuse_engine(engine)
    with connected(admin) as client:
        return operations.erase(
            client,
            key if isinstance(key, bytes) else parse_key({"text": key} if isinstance(key, str) else key),
            [topics] if isinstance(topics, str) else list(topics),
            reason=reason,
            reference=reference,
            tombstones_now=now,
            agree=agree or (lambda behind, _: confirm_groups_behind or not behind),
            dry_run=dry_run,
            timeout_s=_timeout_s(admin, timeout),
            on_progress=on_progress,
        )


def resume(
    admin: Admin,
    erasure_id: str,
    *,
    now: bool = False,
    agree: Agree = lambda behind, _: not behind,
    timeout: Duration | None = None,
    on_progress: OnProgress | None = None,
) -> JsonObject:
    """Continue an open erasure with `clusters.operations.resume`."""
    with connected(admin) as client:
        return operations.resume(
            client,
            erasure_id,
            tombstones_now=now,
            agree=agree,
            timeout_s=_timeout_s(admin, timeout),
            on_progress=on_progress,
        )


def restore(admin: Admin, work_id: str, *, forget: bool = False) -> JsonObject:
    """Put back the configurations that a killed run left lowered, with `clusters.operations.restore`."""
    with connected(admin) as client:
        return operations.restore(client, work_id, forget=forget)


def _timeout_s(admin: Admin, timeout: Duration | None) -> float:
    return admin.timeout_s if timeout is None else seconds_of(timeout)


def _refuse_engine(engine: str | None) -> None:
    if engine is not None:
        raise AdminError(
            "engine applies only to a Diamant broker; this cluster uses its own cleaner",
            status=400,
            code="bad-argument",
        )
