"""Certificates of erasures and redactions: format, signature and digests.

The signature covers the canonical form of a certificate: JSON without `signature.value`, with sorted keys, no spaces and no
floats, encoded in UTF-8 (details: docs/reference/certificates.md). The algorithm is Ed25519 (RFC 8032). `signature.public_key`
is the public key in hexadecimal. It proves nothing by itself: a verifier must compare it with a "pinned" key from elsewhere.

A segment is identified by its SHA-256 digest, and a list of segments by the root of a Merkle tree (RFC 6962). A leaf is the
SHA-256 of 0x00 followed by the canonical form of `{"file", "sha256", "size"}`; a node is the SHA-256 of 0x01 followed by its two
children. In a tree of n leaves, the left subtree has as many leaves as the greatest power of two below n. The root of an empty
list is the SHA-256 of no bytes.
"""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from diamant.json_types import JsonObject
from diamant.storage.env.env import Env
from diamant.storage.errors import StorageError
from diamant.storage.strict_json import parse_strict

if TYPE_CHECKING:
    from diamant.cleaner.evidence.certificates.signing_key import SigningKey

TYPE = "diamant-erasure-certificate"
REDACTION_TYPE = "diamant-redaction-certificate"
CLUSTER_TYPE = "diamant-cluster-erasure-certificate"
"""The type of certificates about an erasure on another Kafka cluster, based on what its brokers return (`cluster_claims`)."""
DISK_TYPE = "diamant-disk-certificate"
"""The type of certificates about the log directories of one broker in such a cluster."""
PERSON_TYPE = "diamant-person-certificate"
"""The type of certificates about one person's request; their parts are certificates of erasures and redactions
(`cleaner/papers/paper.py`)."""
_TYPES = (TYPE, REDACTION_TYPE, CLUSTER_TYPE, DISK_TYPE, PERSON_TYPE)
VERSION = 1
HMAC = "HMAC-SHA-256 with a secret that is not in the data directory"
"""How certificates describe the algorithm of their key and description digests."""
MAX_BYTES = 16 * 1024 * 1024
"""Maximum size of a certificate file."""

TRUSTED = "trusted"
UNTRUSTED = "untrusted signer"
WRONG_SIGNER = "signed with another key than the pinned one"
INVALID = "the signature is not valid: the certificate was changed, or is damaged"

COMPRESSED = (
    "Compressed data other than record batches, such as archives; batches without their header; and batches inside of a record. "
    "Every other batch is decompressed, whatever file it is in."
)
NO_CONTENT = (
    "Where links lead to, unless it is a file or the directory of a partition, and extended attributes. Names that others than "
    "the broker gave are searched, and what is in files."
)
COPIES = (
    "Copies outside of this data directory, and of the staging place that is named under coverage: mirrors, backups, snapshots "
    "of disks."
)
"""Worded as in 0.1: certificates stay the same, byte for byte, from version to version."""
CONSUMERS = "What consumers have stored: their databases, files, caches and logs."
DISK_BLOCKS = "Disk blocks below the file system, which may keep the bytes of removed files until they are overwritten."
LATER_RECORDS = "Records that were written at or above the offsets where the claims end."
NOT_COVERED = (
    COPIES,
    CONSUMERS,
    DISK_BLOCKS,
    LATER_RECORDS,
    "The same facts in other words: only the bytes of the key and of the values that were found are recognised, and those of "
    "fewer than 12 bytes, or of hardly anything but zeros (0x00, 0xFF), only where they are the key of a record.",
    COMPRESSED,
    NO_CONTENT,
    "Copies, outside of records of the key, of values that were not in the topics when this was asked for, or that came between "
    "looking for the key and its tombstone: these values are unknown. Known are those of earlier requests that are in progress, "
    "or ended without seeing everything gone.",
    "Topics that are not named in the request; what was seen in them by the way is listed.",
)

_PUBLIC_KEY_PREFIX = bytes.fromhex("302a300506032b6570032100")
"""The bytes that precede a public key in its DER form."""
_CHUNK_BYTES = 4 * 1024 * 1024


class CertificateError(StorageError):
    """The input is not a certificate that this version can read."""


class WrongKind(StorageError):
    """The key or the description of records given for the verification does not fit this kind of certificate."""


def canonical(fields: Mapping[str, Any]) -> bytes:
    """Return a JSON object in canonical form. Raises TypeError if it contains floats."""
    _refuse_floats(fields)
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode(
        "utf-8", "surrogatepass"
    )


def sign_certificate(fields: Mapping[str, Any], key: SigningKey) -> JsonObject:
    """Return the certificate with its signature."""
    signed = {**fields, "signature": {"algorithm": "Ed25519", "public_key": key.public_bytes.hex()}}
    value = key.sign(canonical(signed)).hex()
    return {**signed, "signature": {**signed["signature"], "value": value}}


class Bundle(NamedTuple):
    """The parts of a certificate that a program needs to check the signature without parsing JSON."""

    signed: bytes
    """The bytes that the signature covers."""
    signature: bytes
    public_key: str
    """The certificate's public key in PEM, which must be compared with a key obtained from elsewhere."""

    def files(self, name: str) -> dict[str, bytes]:
        """Return the contents of the bundle's three files by name: `name`, `name`.sig and `name`.pem."""
        return {name: self.signed, f"{name}.sig": self.signature, f"{name}.pem": self.public_key.encode()}


def bundle_of(certificate: Mapping[str, Any]) -> Bundle:
    """Return the bundle of a certificate. Raises CertificateError if it is malformed, but does not check the signature."""
    check_form(certificate)
    signature = dict(certificate["signature"])
    try:
        value, public = _octets(signature.pop("value")), _octets(signature["public_key"])
        return Bundle(canonical({**certificate, "signature": signature}), value, public_pem(public))
    except (ValueError, TypeError, RecursionError) as error:
        raise CertificateError(f"the certificate has no canonical form that could be signed: {error}") from None


def public_pem(public_key: bytes) -> str:
    """Return a public key in PEM (RFC 8410). Raises ValueError unless it has 32 bytes."""
    if len(public_key) != 32:
        raise ValueError(f"a public key has 32 bytes, this one has {len(public_key)}")
    line = b64encode(_PUBLIC_KEY_PREFIX + public_key).decode()
    return f"-----BEGIN PUBLIC KEY-----\n{line}\n-----END PUBLIC KEY-----\n"


def check_signature(certificate: Mapping[str, Any], pinned: bytes | None) -> str:
    """Return `TRUSTED`, `UNTRUSTED` (valid, but no key is pinned), `WRONG_SIGNER` or `INVALID`.

    Raises CertificateError if the input is not a certificate of this version.
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    check_form(certificate)
    signature = dict(certificate["signature"])
    try:
        value, public = _octets(signature.pop("value")), _octets(signature["public_key"])
        Ed25519PublicKey.from_public_bytes(public).verify(value, canonical({**certificate, "signature": signature}))
    except (InvalidSignature, ValueError, TypeError, RecursionError):
        return INVALID
    if pinned is None:
        return UNTRUSTED
    return TRUSTED if public == pinned else WRONG_SIGNER


def _octets(digits: str) -> bytes:
    """Decode hexadecimal digits. Raises ValueError for anything else, such as upper-case digits or spaces."""
    found = bytes.fromhex(digits)
    if found.hex() != digits:
        raise ValueError("expected lower-case hexadecimal digits only")
    return found


@contextmanager
def expected_form() -> Iterator[None]:
    """Turn errors in the `with` block, which reads the fields of a signed certificate, into a CertificateError.

    The block must do nothing else, because every error in it is blamed on the certificate.
    """
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CertificateError(f"the certificate is signed, but not in the expected form: {error!r}") from None


def check_form(certificate: object) -> None:
    """Raise CertificateError unless this is a certificate that this version can read."""
    if not isinstance(certificate, Mapping) or certificate.get("type") not in _TYPES:
        known = ", ".join(f'"{one}"' for one in _TYPES)
        raise CertificateError(f'this is not a certificate: expected a JSON object whose "type" is one of {known}')
    if certificate.get("version") != VERSION:
        raise CertificateError(f"the certificate has version {certificate.get('version')!r}, expected {VERSION}")
    signature = certificate.get("signature")
    if not isinstance(signature, Mapping) or not all(
        isinstance(signature.get(name), str) for name in ("algorithm", "public_key", "value")
    ):
        raise CertificateError("the certificate has no signature")
    if signature["algorithm"] != "Ed25519":
        raise CertificateError(f"the signature's algorithm is {signature['algorithm'][:40]!r}, expected Ed25519")
    is_person = certificate["type"] == PERSON_TYPE
    parts = [("request", Mapping), ("parts" if is_person else "claims", list), ("state", str)]
    if certificate["type"] in (TYPE, REDACTION_TYPE):
        parts.append(("segments", Mapping))
    for name, kind in parts:
        if not isinstance(certificate.get(name), kind):
            raise CertificateError(f"the certificate has no {name!r}")


def check_kind(certificate: Mapping[str, Any], *, key: object = None, where: object = None) -> None:
    """Raise WrongKind if `key` or `where` is given for a certificate that cannot be verified with it."""
    if certificate["type"] == REDACTION_TYPE and key is not None:
        raise WrongKind(
            "this is the certificate of a redaction: verify it with a description of records (where), not with a key"
        )
    if certificate["type"] in (CLUSTER_TYPE, DISK_TYPE) and (key is not None or where is not None):
        raise WrongKind(
            "this certificate is about a Kafka cluster: only `diamant verify` can verify it with a key, by reading the replicas "
            "again instead of files; it takes no description of records (where)"
        )
    if certificate["type"] == PERSON_TYPE and (key is not None or where is not None):
        raise WrongKind(
            "this is the certificate of a person's request: verify it with identifiers of the person. Only its parts can be "
            "verified with a key or with a description of records (where)"
        )
    if certificate["type"] == TYPE and where is not None:
        raise WrongKind(
            "this is the certificate of an erasure: verify it with a key, not with a description of records (where)"
        )


def is_anything_found(certificate: Mapping[str, Any]) -> bool:
    """Tell whether the job found anything to remove: records, values or tombstones."""
    return any(one.get("records", 1) for one in certificate["found"])


def parse_certificate(text: bytes) -> JsonObject:
    """Parse the bytes of a certificate. Raises CertificateError if they are cut off or are not a certificate."""
    if len(text) > MAX_BYTES:
        raise CertificateError(f"the certificate has {len(text)} bytes, expected at most {MAX_BYTES}")
    try:
        found = parse_strict(text)
    except (ValueError, RecursionError) as error:
        raise CertificateError(f"the certificate is not JSON, or is cut off: {error}") from None
    check_form(found)
    assert isinstance(found, dict)
    return found


def _refuse_floats(value: object) -> None:
    if isinstance(value, float):
        raise TypeError("certificates cannot contain floats, because programming languages format them differently")
    if isinstance(value, Mapping):
        for one in value.values():
            _refuse_floats(one)
    elif isinstance(value, list | tuple):
        for one in value:
            _refuse_floats(one)


# -- segments ----------------------------------------------------------------------------------------------------------


def file_digest(env: Env, path: str, size: int | None = None) -> tuple[int, str]:
    """Hash a file, or its first `size` bytes; return the number of bytes read and their SHA-256 in hexadecimal.

    Does blocking I/O; raises OSError.
    """
    digest = hashlib.sha256()
    position = 0
    file = env.open(path, read_only=True)
    try:
        while size is None or position < size:
            count = _CHUNK_BYTES if size is None else min(_CHUNK_BYTES, size - position)
            data = file.pread(count, position)
            if not data:
                break
            digest.update(data)
            position += len(data)
    finally:
        file.close()
    return position, digest.hexdigest()


def merkle_root(segments: Sequence[Mapping[str, Any]]) -> str:
    """Return the Merkle root of segments (`file`, `size`, `sha256`) in the given order, in hexadecimal."""
    leaves = [hashlib.sha256(b"\0" + canonical(_leaf(segment))).digest() for segment in segments]
    return _root(leaves).hex()


def _leaf(segment: Mapping[str, Any]) -> JsonObject:
    return {name: segment[name] for name in ("file", "sha256", "size")}


def _root(leaves: Sequence[bytes]) -> bytes:
    if not leaves:
        return hashlib.sha256().digest()
    if len(leaves) == 1:
        return leaves[0]
    split = 1 << (len(leaves) - 1).bit_length() - 1
    return hashlib.sha256(b"\1" + _root(leaves[:split]) + _root(leaves[split:])).digest()
