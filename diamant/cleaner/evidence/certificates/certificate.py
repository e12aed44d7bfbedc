"""Certificates of erasures and redactions: form, signature and digests.

The signature covers the canonical form: JSON without `signature.value`, keys sorted, no spaces, UTF-8, integers and text only
(no floats); docs/reference/certificates.md has the details. The algorithm is Ed25519 (RFC 8032). `signature.public_key` is the
public key in hexadecimal. It proves nothing by itself: a verifier must have obtained the key from elsewhere ("pinned").

Segments are identified by SHA-256, and their root is that of a Merkle tree (RFC 6962). A leaf is SHA-256 of 0x00 and the
canonical form of `{"file", "sha256", "size"}`; a node is SHA-256 of 0x01 and its two children. Of n leaves, as many as the
greatest power of two below n form the left subtree. Without leaves the root is SHA-256 of nothing.
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
"""The type for an erasure on a Kafka cluster, seen from outside by what its brokers return (`cluster_claims`)."""
DISK_TYPE = "diamant-disk-certificate"
"""The type for the log directories of one broker of such a cluster."""
PERSON_TYPE = "diamant-person-certificate"
"""The type for one person's request, with certificates of erasures and redactions as parts (`cleaner/papers/paper.py`)."""
_TYPES = (TYPE, REDACTION_TYPE, CLUSTER_TYPE, DISK_TYPE, PERSON_TYPE)
VERSION = 1
HMAC = "HMAC-SHA-256 with a secret that is not in the data directory"
"""Name of the digests of keys and descriptions in certificates."""
MAX_BYTES = 16 * 1024 * 1024
"""Size limit of a certificate's file."""

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
"""The bytes that precede the key in its DER form."""
_CHUNK_BYTES = 4 * 1024 * 1024


class CertificateError(StorageError):
    """The input is not a certificate that this version can read."""


class WrongKind(StorageError):
    """The key or value given for the verification does not fit this kind of certificate."""


def canonical(fields: Mapping[str, Any]) -> bytes:
    """Return the canonical form of JSON. Raises TypeError for floats."""
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
    """The parts of a certificate with which any program can check the signature without reading JSON."""

    signed: bytes
    """The bytes that the signature covers."""
    signature: bytes
    public_key: str
    """The key in the certificate, as PEM, to be compared with a key obtained from elsewhere."""

    def files(self, name: str) -> dict[str, bytes]:
        """Return the contents of the bundle's files by their names, which begin with `name`."""
        return {name: self.signed, f"{name}.sig": self.signature, f"{name}.pem": self.public_key.encode()}


def bundle_of(certificate: Mapping[str, Any]) -> Bundle:
    """Return the bundle of a certificate. Raises CertificateError for other input; the signature is not checked."""
    check_form(certificate)
    signature = dict(certificate["signature"])
    try:
        value, public = _octets(signature.pop("value")), _octets(signature["public_key"])
        return Bundle(canonical({**certificate, "signature": signature}), value, public_pem(public))
    except (ValueError, TypeError, RecursionError) as error:
        raise CertificateError(f"the certificate has no signed form: {error}") from None


def public_pem(public_key: bytes) -> str:
    """Return the 32 bytes of a public key as PEM (RFC 8410). Raises ValueError for another number of bytes."""
    if len(public_key) != 32:
        raise ValueError(f"a public key has 32 bytes, this one has {len(public_key)}")
    line = b64encode(_PUBLIC_KEY_PREFIX + public_key).decode()
    return f"-----BEGIN PUBLIC KEY-----\n{line}\n-----END PUBLIC KEY-----\n"


def check_signature(certificate: Mapping[str, Any], pinned: bytes | None) -> str:
    """Return `TRUSTED`, `UNTRUSTED` (valid, but no key is pinned), `WRONG_SIGNER` or `INVALID`.

    Raises CertificateError for other input.
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
    """Return the bytes of hexadecimal digits. Raises ValueError for other forms, such as capitals or blanks."""
    found = bytes.fromhex(digits)
    if found.hex() != digits:
        raise ValueError("expected lower-case hexadecimal digits only")
    return found


@contextmanager
def expected_form() -> Iterator[None]:
    """Raise CertificateError if a signed certificate lacks a field, or has one of another form.

    Only code that reads fields belongs inside, because any error there is reported as one of the certificate.
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
    """Raise WrongKind if a `key` is given for a redaction's certificate, or a `where` for an erasure's."""
    if certificate["type"] == REDACTION_TYPE and key is not None:
        raise WrongKind(
            "this is the certificate of a redaction: verify it with a description of records (where), not with a key"
        )
    if certificate["type"] in (CLUSTER_TYPE, DISK_TYPE) and (key is not None or where is not None):
        raise WrongKind(
            "this certificate is about a Kafka cluster: only `diamant verify` reads its replicas again, with the key and without "
            "files; it takes no description of records"
        )
    if certificate["type"] == PERSON_TYPE and (key is not None or where is not None):
        raise WrongKind(
            "this is the certificate of a person's request: verify it with identifiers of the person, not with a key or a where. "
            "Each of its parts takes one"
        )
    if certificate["type"] == TYPE and where is not None:
        raise WrongKind(
            "this is the certificate of an erasure: verify it with a key, not with a description of records (where)"
        )


def is_anything_found(certificate: Mapping[str, Any]) -> bool:
    """Tell whether the job found anything to remove: records, values or tombstones."""
    return any(one.get("records", 1) for one in certificate["found"])


def parse_certificate(text: bytes) -> JsonObject:
    """Return a certificate from its bytes. Raises CertificateError if it is cut off or not a certificate."""
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
        raise TypeError("certificates hold no floats: their text differs between languages")
    if isinstance(value, Mapping):
        for one in value.values():
            _refuse_floats(one)
    elif isinstance(value, list | tuple):
        for one in value:
            _refuse_floats(one)


# -- segments ----------------------------------------------------------------------------------------------------------


def file_digest(env: Env, path: str, size: int | None = None) -> tuple[int, str]:
    """Return the number of bytes read, at most `size`, and their SHA-256 in hexadecimal. Blocking; raises OSError."""
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
    """Return the root over `{"file", "size", "sha256"}`, in their order, in hexadecimal."""
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
