"""Claims about a Kafka cluster that is examined from outside: about its brokers' answers, or about one broker's disks.

    unreadable       below the claim's end, no replica returned a value of the key; at least one returned a tombstone
    key-unreadable   below the claim's end, no replica returned a record of the key, not even a tombstone

These states are weaker than values-gone and key-gone, because a broker's answers say nothing about its disk. A disk certificate
claims values-gone or key-gone for one broker. A cluster's certificate may claim them too, if it includes disk certificates for
all replicas.

Only this module derives states from the rows of replicas: the issuer uses `replica_state`, and a verifier computes it again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from diamant.cleaner.evidence.certificates.certificate import (
    CONSUMERS,
    DISK_TYPE,
    TRUSTED,
    CertificateError,
    check_signature,
)
from diamant.cleaner.evidence.scan.report import INCONCLUSIVE, VALUES_PRESENT
from diamant.cleaner.evidence.search.needles import MIN_BYTES
from diamant.storage.certificate_states import KEY_GONE, NOT_CERTIFIED, NOTHING_MATCHED, VALUES_GONE
from diamant.words import counted

UNREADABLE = "unreadable"
KEY_UNREADABLE = "key-unreadable"
NOT_READ = "not-read"

ON_DISK = {UNREADABLE: VALUES_GONE, KEY_UNREADABLE: KEY_GONE}
"""The stronger states that replace these two if the disks of all replicas were searched as well."""

NOT_COVERED = (
    "The disks of the brokers: they may keep the bytes in files that wait for their deletion, in files that no broker serves, "
    "and in freed blocks. `diamant certify` searches the log directories of a broker.",
    "Replicas that are not listed, such as those of a broker that was added later, or moved since.",
    "Remote storage (tiered storage), mirrors, backups and snapshots of disks.",
    CONSUMERS,
    "Records that were written at or above the offsets where the claims end, and topics that are not named.",
    f"The same facts in other words: only records of the key count. Records of other keys are listed if they hold the whole key "
    f"or a whole value that was found, if that has at least {MIN_BYTES} bytes; other copies were not looked for.",
)
FILES_WAIT = (
    "Files that the cleaner has replaced stay on each disk for file.delete.delay.ms, which was not lowered for {}."
)
_PROVES = {
    UNREADABLE: "It says that no broker returned a value of the key, and nothing of the bytes on their disks.",
    KEY_UNREADABLE: "It says that no broker returned a record of the key, and nothing of the bytes on their disks.",
}

Row = Mapping[str, Any]


def replica_name(topic: str, partition: int, broker: int) -> str:
    """Return a human-readable name for a replica, such as `users-0@2`."""
    return f"{topic}-{partition}@{broker}"


def replica_state(row: Row, below_offset: int) -> tuple[str, str]:
    """Return the state that a replica's row proves, and the reason if that state supports no claim (else "")."""
    planted, seen = row["known_positives"]["planted"], row["known_positives"]["seen"]
    if row["problem"]:
        return NOT_READ, str(row["problem"])
    if row["to_offset"] < below_offset:
        return NOT_READ, f"it was read up to offset {row['to_offset']}, expected {below_offset}"
    if row["values"]:
        return VALUES_PRESENT, f"a value of the key is at offset {row['values'][0]}"
    if not row["bytes"] and row["to_offset"] > row["from_offset"]:
        return INCONCLUSIVE, f"it returned no batch from offset {row['from_offset']} to {row['to_offset']}"
    if planted != seen or (row["bytes"] and not planted):
        return INCONCLUSIVE, f"the search found {seen} of {planted} records that were planted for it"
    return (UNREADABLE if row["tombstones"] else KEY_UNREADABLE), ""


def overall_state(claims: Sequence[Row], *, is_complete: bool, is_anything_found: bool) -> str:
    """Return the state of a certificate. `is_complete`: every partition has a claim."""
    if not claims or not is_complete:
        return NOT_CERTIFIED
    states = {claim["state"] for claim in claims}
    if not is_anything_found and UNREADABLE not in states:
        return NOTHING_MATCHED
    return UNREADABLE if UNREADABLE in states else KEY_UNREADABLE


def weaker(states: Iterable[str]) -> str:
    """Return the weaker of the given states, which is what the replicas prove together."""
    return UNREADABLE if UNREADABLE in set(states) else KEY_UNREADABLE


def without_disk(certificate: Row) -> list[str]:
    """Return the names of the replicas whose disks were not searched, or not up to the claim's end."""
    searched = {
        (disk["broker"], claim["topic"], claim["partition"]): claim["below_offset"]
        for disk in certificate.get("disks", ())
        for claim in disk["claims"]
        if claim["state"] in (VALUES_GONE, KEY_GONE)
    }
    return [
        replica_name(claim["topic"], claim["partition"], row["broker"])
        for claim in certificate["claims"]
        for row in claim["replicas"]
        if searched.get((row["broker"], claim["topic"], claim["partition"]), -1) < claim["below_offset"]
    ]


def with_disks(certificate: Row) -> str:
    """Return the state of a cluster's certificate and its `disks`: values-gone or key-gone if the disks cover all replicas."""
    read = state_of_reads(certificate)
    if read not in ON_DISK or not certificate.get("disks") or without_disk(certificate):
        return read
    found = {claim["state"] for disk in certificate["disks"] for claim in disk["claims"]}
    return KEY_GONE if read == KEY_UNREADABLE and found == {KEY_GONE} else VALUES_GONE


def state_of_reads(certificate: Row) -> str:
    """Return the state that a cluster's certificate proves without its `disks`, by its reads alone."""
    return overall_state(
        certificate["claims"],
        is_complete=not certificate["not_certified"],
        is_anything_found=bool(certificate["found"]),
    )


def contradictions(certificate: Row) -> list[str]:
    """Return a sentence for each contradiction within a certificate. Raises KeyError or TypeError if a field is malformed."""
    found: list[str] = []
    claims, topics = certificate["claims"], certificate["request"]["topics"]
    places = Counter((one["topic"], one["partition"]) for one in claims)
    found += [f"It has {count} claims about {topic}-{at}." for (topic, at), count in places.items() if count > 1]
    found += [
        f"It claims something about {topic!r}, which was not requested." for topic in {t for t, _ in places} - {*topics}
    ]
    if certificate["type"] == DISK_TYPE:
        return [*found, *_of_disk(certificate)]
    for topic in topics:
        known = {one["partition"] for one in (*claims, *certificate["not_certified"]) if one["topic"] == topic}
        missing = sorted({*range(certificate["request"]["partitions"][topic])} - known)
        found += [f"It says nothing about {topic}-{partition}." for partition in missing]
    for claim in claims:
        found += _of_claim(claim, certificate["clock"])
    found += _of_disks(certificate)
    expected = with_disks(certificate)
    if certificate["state"] != expected:
        found.append(f"It says {certificate['state']}, but what it lists proves {expected}.")
    return found


def written_since(certificate: Row) -> dict[str, set[int]]:
    """Return, by partition, the offsets of records above the claims that a certificate and its disk certificates list."""
    since: dict[str, set[int]] = {}
    for fields in (certificate, *certificate.get("disks", ())):
        for one in fields.get("written_since", ()):
            since.setdefault(f"{one['topic']}-{one['partition']}", set()).add(one["offset"])
    return since


def remarks(certificate: Row) -> list[str]:
    """Return sentences that a reader needs besides the state: about its scope, problems that prevented claims, later records."""
    found = [_PROVES[certificate["state"]]] if certificate["state"] in _PROVES else []
    if certificate["type"] == DISK_TYPE:
        found.append(f"It is about the log directories of broker {certificate['broker']} only, and no other replica.")
    found += [
        f"The key was written again to {name}: {counted(len(offsets), 'record')}, the first at offset {min(offsets)}, not erased."
        for name, offsets in written_since(certificate).items()
    ]
    found += [
        f"{one['topic']}-{one['partition']}: {problem['file']}: {problem['reason']}."
        for one in certificate["not_certified"]
        for problem in one["problems"]
    ]
    return found + [f"The disk of {name} was not searched." for name in certificate.get("without_disk", ())]


def _of_claim(claim: Row, clock: Row) -> list[str]:
    name, rows = f"{claim['topic']}-{claim['partition']}", claim["replicas"]
    brokers = [row["broker"] for row in rows]
    found = []
    if not rows or sorted(brokers) != sorted(claim["brokers"]):
        found.append(f"{name} has replicas on brokers {claim['brokers']}, but was read on {brokers}.")
    states = []
    for row in rows:
        state, reason = replica_state(row, claim["below_offset"])
        states.append(state)
        if reason:
            found.append(f"{name} at broker {row['broker']}: {reason}.")
        if not clock["requested_ms"] <= row["began_ms"] <= row["ended_ms"] <= clock["issued_ms"]:
            found.append(f"{name} at broker {row['broker']} was not read between the request and the certificate.")
    if states and claim["state"] != weaker(states):
        found.append(f"{name} is said to be {claim['state']}, but its replicas prove {weaker(states)}.")
    return found


def _of_disks(certificate: Row) -> list[str]:
    """Return sentences about disk certificates that do not belong in this cluster's certificate."""
    found = []
    public_key = bytes.fromhex(certificate["signature"]["public_key"])
    for disk in certificate.get("disks", ()):
        try:
            is_genuine = disk["type"] == DISK_TYPE and check_signature(disk, public_key) == TRUSTED
            problems = contradictions(disk) if is_genuine else ["it was not signed with the same key"]
        except (CertificateError, KeyError):
            problems = ["it is not a certificate"]
        if not problems and disk["erasure"] != certificate["erasure"]:
            problems = ["it belongs to another erasure"]
        found += [f"Its certificate of the disk of broker {disk['broker']}: {problem}" for problem in problems]
    if certificate.get("without_disk", []) != (without_disk(certificate) if "disks" in certificate else []):
        found.append("It does not name the replicas whose disks were not searched.")
    return found


def _of_disk(certificate: Row) -> list[str]:
    states = {claim["state"] for claim in certificate["claims"]}
    expected = disk_state(states, is_complete=not certificate["not_certified"])
    known = certificate["coverage"]["known_positives"]
    found = []
    if certificate["state"] != expected:
        found.append(f"It says {certificate['state']}, but what it lists proves {expected}.")
    if expected != NOT_CERTIFIED and not 0 < known["planted"] == known["seen"]:
        found.append("Its scan missed records that were planted for it.")
    return found


def disk_state(states: Iterable[str], *, is_complete: bool) -> str:
    """Return the state of a disk certificate, given the states of its partitions."""
    found = set(states)
    if not found or not is_complete or not found <= {VALUES_GONE, KEY_GONE}:
        return NOT_CERTIFIED
    return VALUES_GONE if VALUES_GONE in found else KEY_GONE
