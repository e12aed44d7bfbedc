"""Requests of the operations for erasures, redactions and their certificates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, TypeAlias

from diamant.argument import Argument, Engine, Force, Registry, Timeout
from diamant.cleaner.redaction.where import HOLD, KEEP, REMOVE
from diamant.cleaner.values.edits import NULL

Reason: TypeAlias = Annotated[
    str, Argument("The reason. It is recorded in the certificate, so it must contain no key and no value.")
]
Reference: TypeAlias = Annotated[
    str,
    Argument("The request's case number. It is recorded in the certificate, so it must contain no key and no value."),
]
Id: TypeAlias = Annotated[str, Argument("The id of the erasure or redaction.")]


@dataclass(frozen=True, slots=True)
class EraseRequest:
    """Erases a key from compacted topics.

    The operation returns once no value is left. Its result states when the certificate for `key-gone` will follow.
    Errors: NotFound, NotPossible (not compacted), BadArgument, TimedOut, EraseFailed.
    """

    key: Annotated[bytes, Argument("The key whose records to erase.", short="-k")]
    topics: Annotated[tuple[str, ...], Argument("Compacted topics; all their partitions are searched.")]
    _: KW_ONLY
    reason: Reason
    reference: Reference = ""
    now: Annotated[
        bool,
        Argument(
            "Also remove the tombstones before their horizon, unless groups have not read them. In that case the tombstones "
            "stay, `is_now_refused` is true, and `groups_behind` lists the groups; `erase_now` continues."
        ),
    ] = False
    confirm_groups_behind: Annotated[
        bool,
        Argument("With `now`: remove the tombstones even if groups have not read them and never see the deletion."),
    ] = False
    force: Force = False
    engine: Engine = None
    timeout: Timeout = None


@dataclass(frozen=True, slots=True)
class EraseNowRequest:
    """Resumes a waiting erasure immediately, before its tombstones' horizon, as `now` of `erase` does.

    Errors: NotFound, NotPossible, TimedOut, EraseFailed.
    """

    id: Annotated[str, Argument("The id of the erasure.")]
    _: KW_ONLY
    confirm_groups_behind: Annotated[
        bool,
        Argument(
            "Proceed even if groups have not read the tombstones and will never see the deletion. Otherwise such groups prevent "
            "any change: `is_now_refused` is true and `groups_behind` lists them."
        ),
    ] = False
    timeout: Timeout = None


@dataclass(frozen=True, slots=True)
class RedactRequest:
    """Removes the matching records of a topic, compacted or not; with `blank` or `set`, changes fields in them instead.

    All other records keep their offsets. On a compacted topic, older values of a matched key are removed as well. Errors:
    NotFound, NotPossible, BadArgument, TimedOut, RedactFailed.
    """

    topic: Annotated[str, Argument("The topic, compacted or not; all its partitions are searched.")]
    where: Annotated[
        str,
        Argument(
            'A condition for the records: key == "customer-42", header.user == "42", value.customer.email == "ada@example.com"; '
            "conditions combine with and, or and parentheses."
        ),
    ]
    _: KW_ONLY
    reason: Reason
    reference: Reference = ""
    blank: Annotated[
        tuple[str, ...],
        Argument("Fields to blank, such as value.customer.name or header.user. All other data in the records stays."),
    ] = ()
    blank_with: Annotated[
        str,
        Argument("What blanked fields become: null, the schema's default, empty, or a fixed text (text:***)."),
    ] = NULL
    set: Annotated[
        tuple[str, ...],
        Argument("""Fields to correct, each with its value as JSON: --set 'value.customer.name="Ada L."'."""),
    ] = ()
    yes_all: Annotated[bool, Argument("Continue even if every record of the topic matches.")] = False
    undecided: Annotated[
        str,
        Argument(
            "How to treat values that may match because they are not JSON or their schema is missing: certify nothing, remove "
            "them (not with blank or set), or keep them and list them in the certificate.",
            (HOLD, REMOVE, KEEP),
        ),
    ] = HOLD
    registry: Registry = None
    timeout: Timeout = None


@dataclass(frozen=True, slots=True)
class CancelRequest:
    """Ends an unfinished erasure or redaction. Errors: NotFound, NotPossible."""

    id: Id
    _: KW_ONLY
    reason: Reason


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """Checks a certificate against the broker's current data. Errors: BadArgument."""

    certificate: Annotated[Mapping[str, Any], Argument("The certificate.")]
    _: KW_ONLY
    public_key: Annotated[
        str | None, Argument("The trusted public key, in hexadecimal. Without it, the signer is not trusted.")
    ] = None
    key: Annotated[bytes | None, Argument("The erased key, to search for it.", short="-k")] = None
    where: Annotated[str | None, Argument("The `where` of a redaction, to search for its records again.")] = None
    set: Annotated[tuple[str, ...], Argument("The `set` of a redaction, to compare the fields with it.")] = ()
    identifiers: Annotated[
        Mapping[str, Any] | None,
        Argument(
            "For a person's certificate: the identifiers by name, each a string or a list of strings, to search for the records "
            "again."
        ),
    ] = None
    registry: Registry = None


@dataclass(frozen=True, slots=True)
class CertificatesRequest:
    """Asks for a list of all certificates and unfinished jobs, and for the public key."""


@dataclass(frozen=True, slots=True)
class CertificateRequest:
    """Asks for the last certificate of an erasure or redaction.

    Errors: NotFound; NotGenuine if it has changed since it was signed.
    """

    id: Id
    _: KW_ONLY
    as_it_is: Annotated[
        bool,
        Argument("Return it even if its signature is wrong or cannot be checked. A page says so in its first line."),
    ] = False
