"""Recomputes the subjects of a paper's parts from the person's identifiers: keys of erasures and conditions of redactions.

A paper contains no keys or conditions, but the places by which the map recognised the person, and HMACs of all identifiers, keys
and conditions. So a verifier who knows the identifiers and the secret can recompute each key and each condition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from diamant.cleaner.evidence.certificates.certificate import REDACTION_TYPE
from diamant.cleaner.evidence.search.needles import keyed_digest
from diamant.cleaner.person.identifiers import Identifier, conditions
from diamant.cleaner.person.places import parse_place
from diamant.cleaner.redaction.where import Where, parse_where
from diamant.cleaner.values.schemas import Values


def identifier_digest(secret: bytes, name: str, value: str) -> str:
    """Return the HMAC of an identifier, as used in papers and in the register."""
    return keyed_digest(secret, f"{name}\0{value}".encode()).hex()


@dataclass(frozen=True, slots=True)
class PartSubject:
    """The key or condition with which a part is verified."""

    key: bytes | None = None
    where: Where | None = None
    missing: str = ""
    """Reason why the condition of a redaction is unknown."""


@dataclass(slots=True)
class PartSubjects:
    """Finds the subjects of the parts of one paper."""

    paper: Mapping[str, Any]
    secret: bytes
    given: Mapping[str, Sequence[str]]
    values_of: Callable[[str], Values] | None = None
    """Returns the decoder of a topic's values; None if the schemas come from the directory."""
    known: list[Identifier] = field(init=False)
    """The given identifiers that the paper is about, in the paper's order."""
    unknown: list[str] = field(init=False)
    """The name of each identifier of the paper that was not given."""

    def __post_init__(self) -> None:
        by_digest = {
            identifier_digest(self.secret, name, value): Identifier(name, value)
            for name, values in self.given.items()
            for value in values
        }
        digests = [(str(one["name"]), str(one["hmac"])) for one in self.paper["request"]["identifiers"]]
        self.known = [by_digest[digest] for _, digest in digests if digest in by_digest]
        self.unknown = [name for name, digest in digests if digest not in by_digest]

    def of(self, part: Mapping[str, Any]) -> PartSubject:
        """Return the subject of a part."""
        if part["type"] != REDACTION_TYPE:
            wanted = part["request"]["key_hmac"]
            keys = (one.value.encode() for one in self.known)
            found = next((key for key in keys if keyed_digest(self.secret, key).hex() == wanted), None)
            return PartSubject(key=found)  # If the key is unknown, its digest is enough to search for its records.
        names: set[str] = set()
        for row in self.paper["topics"]:
            if part["id"] in row["parts"]:
                identity = row.get("identity", {})
                names |= {*identity}
                for text in self._conditions(identity):
                    where = parse_where(text, values=self._values(str(row["topic"])))
                    if keyed_digest(self.secret, where.canonical).hex() == part["request"]["where_hmac"]:
                        return PartSubject(where=where)
        return PartSubject(missing=self._missing({*self.unknown} & names))

    def _conditions(self, identity: Mapping[str, Sequence[str]]) -> Iterator[str]:
        places = {name: tuple(map(parse_place, texts)) for name, texts in identity.items()}
        ordered = [one for name in places for one in self.known if one.name == name]
        yield from conditions([places], ordered)

    def _values(self, topic: str) -> Values | None:
        return None if self.values_of is None else self.values_of(topic)

    def _missing(self, names: set[str]) -> str:
        if not names:
            return "it is about identifiers other than the given ones, or the secret is different"
        counts = ", ".join(f"{self.unknown.count(name)} of {name}" for name in sorted(names))
        return f"identifiers of the person are missing: {counts}"
