"""Implements erase, resume, compact and restore for any Kafka cluster. Responses have the same fields as a Diamant broker's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from diamant.broker import certificate_texts
from diamant.broker.client.kafka_client import KafkaClient, KafkaRefusal
from diamant.broker.client.kafka_connection import ConnectionFailed
from diamant.broker.clusters import lowered_configs
from diamant.broker.clusters.certificate import existing_signing_key, issue, key_secret
from diamant.broker.clusters.cluster_look import look, now_ms
from diamant.broker.clusters.compacting import CompactionRun
from diamant.broker.clusters.erasing import Agree, ErasureRun
from diamant.broker.clusters.outcome import ErasureOutcome
from diamant.broker.clusters.register import ClusterWork, Register
from diamant.broker.clusters.work_progress import WorkProgress
from diamant.broker.operation_errors import NotPossible, OperationError
from diamant.cleaner.evidence.search.needles import keyed_digest

if TYPE_CHECKING:
    from diamant.json_types import JsonObject, OnProgress


_SAID = "reason and reference"
_ERRORS = (OperationError, KafkaRefusal, ConnectionFailed)


def erase(
    client: KafkaClient,
    key: bytes,
    topics: Sequence[str],
    *,
    reason: str,
    reference: str = "",
    tombstones_now: bool = False,
    agree: Agree = lambda behind, _: not behind,
    dry_run: bool = False,
    timeout_s: float,
    on_progress: OnProgress | None = None,
    register: Register | None = None,
) -> JsonObject:
    """Erase a key from topics of a Kafka cluster. `tombstones_now`: remove tombstones before their horizon if `agree` allows it.

    Returns the state, the certificate and what is left to do; with `dry_run`, only the plan.
    Raises OperationError, KafkaRefusal, ConnectionFailed. The message names configurations that could not be put back.
    """
    certificate_texts.check_reason(reason, reference)
    certificate_texts.check_unsaid(_SAID, [reason, reference], [key])
    register = register or Register()
    secret = key_secret(str(register.directory))
    outcome = ErasureOutcome(
        id=register.new_id(),
        cluster_id="",
        topics=tuple(dict.fromkeys(topics)),
        topic_ids={},
        key_digest=keyed_digest(secret, key).hex(),
        reason=reason,
        reference=reference,
        started_ms=now_ms(),
        tombstones_now=tombstones_now,
    )
    work = ClusterWork(
        outcome.id, "erase", "", client.bootstrap, [*outcome.topics], outcome.started_ms, key=key, outcome=outcome
    )
    run = ErasureRun(client, register, work, secret, WorkProgress(timeout_s, on_progress))
    return _run(register, work, run, agree, dry_run=dry_run)


def resume(
    client: KafkaClient,
    erasure_id: str,
    *,
    tombstones_now: bool = False,
    agree: Agree = lambda behind, _: not behind,
    timeout_s: float,
    on_progress: OnProgress | None = None,
    register: Register | None = None,
) -> JsonObject:
    """Continue an open erasure. Returns and raises what `erase` does, and NotFound if the register has no job with this id.

    `tombstones_now`: from now on, remove tombstones before their horizon if `agree` allows it.
    """
    register = register or Register()
    work = register.get(erasure_id)
    if work.outcome is None:
        raise NotPossible(
            f"{erasure_id} is a compaction, which cannot be resumed; `diamant restore` puts its configurations back"
        )
    secret = existing_signing_key(str(register.directory)).secret
    left: list[str] = []
    if work.changes:
        # Otherwise, this run would mistake the values lowered by a killed run for the topics' own, and not lower them.
        found = restore(client, erasure_id, register=register)
        left = found["left"]
        if found["not_put_back"]:
            raise NotPossible(
                f"the erasure was not resumed, because configurations that a killed run lowered could not be put back: "
                f"{not_put_back_text(found['not_put_back'])}"
            )
        work = register.get(erasure_id)
    assert work.outcome is not None
    # Between the runs, segments may have been replaced while file.delete.delay.ms was not lowered.
    is_now = tombstones_now or work.outcome.tombstones_now
    work.outcome = replace(work.outcome, file_delay_lowered=(), tombstones_now=is_now)
    run = ErasureRun(client, register, work, secret, WorkProgress(timeout_s, on_progress))
    run.left += left
    return _run(register, work, run, agree if tombstones_now else None)


def _run(
    register: Register, work: ClusterWork, run: ErasureRun, agree: Agree | None = None, *, dry_run: bool = False
) -> JsonObject:
    check_alone(register, work)
    run.look()
    same = [one for one in register.all() if one.key == work.key and one.is_open and {*one.topics} & {*work.topics}]
    others = [one.id for one in same if one.id != work.id and one.cluster_id == work.cluster_id]
    if dry_run:
        _find(run)
        return run.plan() | {"open": others}
    with register.working(work):
        _find(run)
        try:
            run.erase(agree)
        except _ERRORS as error:
            raise with_not_put_back(error, work, run.not_put_back) from None
        outcome = run.outcome
        certificate, path = _certify(register, outcome)
        if work.changes or outcome.state in ("not-certified", "unreadable"):
            register.save(work)
        else:
            register.remove(work)
    horizons = [one.horizon_ms for read in outcome.reads for one in read.tombstones if one.horizon_ms is not None]
    since = {(read.topic, read.partition, one.offset) for read in outcome.reads for one in read.written_since}
    return {
        "id": outcome.id,
        "state": certificate["state"],
        "certificate": certificate,
        "certificate_path": path,
        "outcome": outcome.to_fields(),
        "missing": outcome.missing,
        "open": others,
        "left": run.left,
        "not_put_back": dict(run.not_put_back),
        "groups_behind": dict(run.groups_behind),
        "groups_not_known": run.groups_not_known,
        "is_now_refused": run.is_now_refused,
        "written_since": [{"topic": topic, "partition": number, "offset": at} for topic, number, at in sorted(since)],
        "next_due_ms": max(horizons, default=None),
    }


def _find(run: ErasureRun) -> None:
    """Search, then raise BadArgument if the reason or reference contains a value found, as the certificate would keep it."""
    run.find()
    certificate_texts.check_unsaid(_SAID, [run.outcome.reason, run.outcome.reference], [], run.values_sought)


def compact(
    client: KafkaClient,
    topic: str,
    *,
    partition: int | None = None,
    force: bool = False,
    timeout_s: float,
    on_progress: OnProgress | None = None,
    on_note: Callable[[str], object] = lambda _: None,
    register: Register | None = None,
) -> JsonObject:
    """Clean all replicas of a topic up to its present end, and return a report. Raises the same errors as `erase`."""
    register = register or Register()
    work = ClusterWork(register.new_id(), "compact", "", client.bootstrap, [topic], now_ms())
    check_alone(register, work)
    progress = WorkProgress(timeout_s, on_progress, on_note=on_note)
    with register.working(work):
        run = CompactionRun(client, register, work, progress, partition=partition, force=force)
        try:
            return run.run()
        except _ERRORS as error:
            raise with_not_put_back(error, work, run.not_put_back) from None
        finally:
            if not work.changes:
                register.remove(work)


def with_not_put_back(error: Exception, work: ClusterWork, failed: Mapping[str, str]) -> Exception:
    """Return `error`, or, if topics still have lowered configurations, a NotPossible that names them as well."""
    if not failed:
        return error
    return NotPossible(f"{error}; not put back: {not_put_back_text(failed)}; `diamant restore {work.id}` tries again")


def not_put_back_text(failed: Mapping[str, str]) -> str:
    """Return the topics with lowered configurations and the reasons as one string."""
    return "; ".join(f"topic {topic!r} ({reason})" for topic, reason in failed.items())


def check_alone(register: Register, work: ClusterWork) -> None:
    """Raise NotPossible if another job has lowered configurations of the same topics."""
    for other in register.all():
        if other.id == work.id or not other.changes.keys() & set(work.topics):
            continue
        if register.is_in_progress(other):
            raise NotPossible(
                f"{other.verb} {other.id} is in progress on topic {', '.join(other.changes)}: wait until it ends"
            )
        raise NotPossible(
            f"{other.verb} {other.id} ended without putting back configurations of {', '.join(other.changes)}: "
            f"`diamant restore {other.id}` puts them back"
        )


def restore(client: KafkaClient, work_id: str, *, forget: bool = False, register: Register | None = None) -> JsonObject:
    """Put back configurations that a killed run left lowered. `forget`: give up an open erasure and drop its key.

    Raises NotFound, KafkaRefusal, or NotPossible if the job belongs to another cluster.
    """
    register = register or Register()
    work = register.get(work_id)
    with register.working(work):
        names = [*work.changes]
        if names:
            present = look(client, []).cluster_id
            if work.cluster_id and present != work.cluster_id:
                raise NotPossible(
                    f"{work_id} belongs to cluster {work.cluster_id} at {work.bootstrap}, but this is cluster {present}; nothing "
                    "was changed"
                )
        found = lowered_configs.put_back(client, register, work)
        is_open = not forget and work.outcome is not None and work.outcome.is_open
        if forget:
            work.key = work.outcome = None
        if work.outcome is not None or work.changes:
            register.save(work)
        else:
            register.remove(work)
    return {
        "id": work_id,
        "topics": [name for name in names if name not in found.failed],
        "left": [*found.left],
        "not_put_back": dict(found.failed),
        "is_open": is_open,
    }


def _certify(register: Register, outcome: ErasureOutcome) -> tuple[JsonObject, str]:
    certificate = issue(outcome, str(register.directory))
    return certificate, register.keep_certificate(certificate, outcome.id)
