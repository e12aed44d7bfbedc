"""Searches names of files, directories and links: they are data in the directory, too, and appear in a scan's account.

A name that contains what a scan looks for, as plain bytes or in hexadecimal, is a finding, as if a file contained it. Reports
replace the match with its kind and the beginning of its digest, as in `exports/[key 1437ea35].csv`.

Names that the broker or Kafka give (`storage.given_names`), including those of partition directories, are not searched, because
they cannot be changed. All other names are searched, however similar they are.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace

from diamant.cleaner.evidence.scan.file_listing import Place
from diamant.cleaner.evidence.search.needles import MIN_BYTES, Hit, Needles
from diamant.storage import names
from diamant.storage.given_names import (
    is_given_at_the_top,
    is_given_in_a_partition,
    is_given_to_a_partition,
    is_given_to_an_output,
)

SHOWN_DIGEST_BYTES = 4

_HEX = re.compile(rb"(?:[0-9a-fA-F]{2}){%d,}[0-9a-fA-F]?" % MIN_BYTES)


def hits_in_name(place: Place, needles: Needles) -> list[Hit]:
    """Return the findings in a name. Positions and sizes are in bytes of `place.name`."""
    start = _given_by_others(place)
    if start is None:
        return []
    skipped, text = len(os.fsencode(place.name[:start])), os.fsencode(place.name[start:])
    found = needles.find(text)
    for run in _HEX.finditer(text):
        for at in (run.start(), run.start() + 1):
            data = bytes.fromhex(text[at : run.end() - (run.end() - at) % 2].decode())
            found += [
                Hit(replace(hit.needle, size=2 * hit.needle.size), at + 2 * hit.start) for hit in needles.find(data)
            ]
    return [Hit(hit.needle, skipped + hit.start) for hit in found]


def _given_by_others(place: Place) -> int | None:
    """Return where the part of a name begins that neither the broker nor Kafka gave; None if there is no such part."""
    if place.name.startswith("/"):
        # A staging location of a Spark job. The directories above it are named in the configuration.
        start = place.name.find(f"/{names.STAGING_PREFIX}") + 1
        return None if is_given_to_an_output(place.name[start:]) else start
    owner, slash, rest = place.name.partition("/")
    if slash and place.topic is not None and is_given_to_a_partition(owner):
        return None if not rest or is_given_in_a_partition(rest) else len(owner) + 1
    return None if is_given_at_the_top(place.name) else 0


def shown_name(place: Place, needles: Needles) -> str:
    """Return a name in the form that certificates show, with its findings masked."""
    hits = hits_in_name(place, needles)
    return masked(place, hits) if hits else place.name


def masked(place: Place, hits: list[Hit]) -> str:
    """Return a name with its findings masked."""
    whole = os.fsencode(place.name)
    found, at = b"", 0
    for hit in sorted(hits, key=lambda one: (one.start, -one.needle.size)):
        if hit.start >= at:
            label = f"[{hit.needle.kind} {hit.needle.digest[:SHOWN_DIGEST_BYTES].hex()}]"
            found += whole[at : hit.start] + label.encode()
        at = max(at, hit.start + hit.needle.size)
    return os.fsdecode(found + whole[at:])
