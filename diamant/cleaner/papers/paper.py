"""The paper of a person's request: one certificate whose parts are the certificates of its erasures and redactions.

The state of a paper follows from its rows and its parts. The issuer states what `state_of` returns, and a verifier computes the
state again with the same function. Each part can still be verified alone.

    forgotten             each part certifies what the request asked of its topics
    forgotten-but-kept    the same, but records stay on a ground that the paper names
    values-gone           the same, but tombstones still name keys
    nothing-matched       nothing of the person was found
    not-certified         a topic has no part, a part certifies nothing, no record has a field that was to be blanked, or
                          records stay without a ground
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from diamant.cleaner.evidence.certificates.certificate import (
    PERSON_TYPE,
    REDACTION_TYPE,
    TRUSTED,
    TYPE,
    CertificateError,
    check_signature,
    is_anything_found,
)
from diamant.cleaner.evidence.certificates.page_words import fields_not_seen
from diamant.cleaner.person.people_map import KEEP
from diamant.storage.certificate_states import (
    FORGOTTEN,
    FORGOTTEN_BUT_KEPT,
    LAST_STATES,
    NOT_CERTIFIED,
    NOTHING_MATCHED,
    VALUES_GONE,
)
from diamant.words import counted

NOT_COVERED = (
    "Records that name the person in another way than the request: by identifiers that it does not list, in other words, in "
    "fields or topics that the data map does not name.",
    "What was written after the offsets where the claims of the parts end.",
    "What each part does not cover: each lists it.",
)

Fields = Mapping[str, Any]

MAX_REASONS = 5
"""Maximum number of reasons given for a part."""


def is_paper(certificate: Fields) -> bool:
    """Return whether a certificate is the paper of a person's request."""
    return certificate.get("type") == PERSON_TYPE


def state_of(topics: Sequence[Fields], parts: Sequence[Fields]) -> str:
    """Return the state that the rows of the topics and their parts prove."""
    known = {str(one["id"]): one for one in parts}
    asked = [one for one in topics if one["do"] != KEEP]
    if any(not one["parts"] or not known.keys() >= {*one["parts"]} for one in asked):
        return NOT_CERTIFIED
    states = {one["state"] for one in parts}
    if any(one.get("ended") for one in parts) or not states <= {*LAST_STATES, VALUES_GONE}:
        return NOT_CERTIFIED
    if any(unseen_fields(row, known) for row in asked) or any(map(_lacks_ground, topics)):
        return NOT_CERTIFIED
    if VALUES_GONE in states:
        return VALUES_GONE
    if any(one["keep"] and one["records"] for one in topics):
        return FORGOTTEN_BUT_KEPT
    is_any = any(one["records"] for one in topics) or any(is_anything_found(one) for one in parts)
    return FORGOTTEN if is_any else NOTHING_MATCHED


def _lacks_ground(row: Fields) -> bool:
    """Return whether records stay although neither an action nor a ground is given for them."""
    return bool(row["do"] == KEEP and row["records"] and not (row["keep"] and row["keep"]["because"]))


def unseen_fields(row: Fields, parts: Mapping[str, Fields]) -> list[str]:
    """Return the fields to blank that no record of the person in a topic has, for example because the names are misspelled."""
    found = [fields_not_seen(parts[one]) for one in row["parts"] if one in parts and parts[one]["found"]]
    return [name for name in found[0] if all(name in one for one in found)] if found else []


def shortfalls(row: Fields, parts: Mapping[str, Fields]) -> list[str]:
    """Return why the parts of a topic certify less than requested: early ends, obstacles, fields that no record has."""
    said = []
    if _lacks_ground(row):
        said.append("its records stay without a ground: give one in the map, or what is to be done, and ask again")
    for part in [parts[one] for one in row["parts"] if one in parts]:
        if ended := part.get("ended"):
            said.append(f"its part was ended before it was finished ({ended['what']})")
        missed = () if part["state"] in (*LAST_STATES, VALUES_GONE) else part.get("not_certified", ())
        reasons = Counter(str(one["reason"]) for place in missed for one in place["problems"])
        said += [f"{counted(count, 'obstacle')}: {reason}" for reason, count in reasons.most_common(MAX_REASONS)]
    if names := unseen_fields(row, parts):
        said.append(
            f"no record of the person has {', '.join(names)}, so nothing was blanked there: correct the map if a name is "
            "misspelled, take out what these records do not have, and ask again"
        )
    return list(dict.fromkeys(said))


def contradictions(paper: Fields) -> list[str]:
    """Return sentences about claims of a paper that its parts do not prove. Raises KeyError or TypeError if its form is wrong."""
    found = []
    topics, parts = paper["topics"], paper["parts"]
    ids = [str(one.get("id")) for one in parts]
    found += [f"It has the part {one} more than once." for one in sorted({one for one in ids if ids.count(one) > 1})]
    public_key = bytes.fromhex(paper["signature"]["public_key"])
    for part in parts:
        if problem := _problem_of(part, public_key):
            found.append(f"Its part {part.get('id')}: {problem}.")
    if found:
        return found
    found += _of_rows(topics, {str(one["id"]): one for one in parts})
    expected = NOT_CERTIFIED if paper["ended"] else state_of(topics, parts)
    if paper["state"] != expected:
        found.append(f"It says {paper['state']}, but its parts prove {expected}.")
    return found


def _problem_of(part: Fields, public_key: bytes) -> str:
    try:
        if part.get("type") not in (TYPE, REDACTION_TYPE):
            return "it is no certificate of an erasure or a redaction"
        return "" if check_signature(part, public_key) == TRUSTED else "it was not signed with the same key"
    except CertificateError as error:
        return str(error)


def _of_rows(topics: Sequence[Fields], parts: Mapping[str, Fields]) -> Iterable[str]:
    used = set()
    for row in topics:
        topic = row["topic"]
        for part_id in row["parts"]:
            used.add(part_id)
            if part_id in parts and topic not in parts[part_id]["request"]["topics"]:
                yield f"Its part {part_id} is not about {topic}."
    for part_id in sorted(set(parts) - used):
        yield f"No topic names its part {part_id}."
