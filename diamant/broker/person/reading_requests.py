"""Requests of the operations on people. Their modules import much, so commands read the requests here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, TypeAlias

from diamant.argument import Argument, Registry

PersonMap: TypeAlias = Annotated[Mapping[str, Any], Argument("The map of people, as JSON.")]
Identifiers: TypeAlias = Annotated[
    Mapping[str, Any], Argument("Identifiers of the person by name: a text, or a list of texts.")
]
Subjects: TypeAlias = Annotated[
    list[Mapping[str, Any]], Argument("The people: of each the identifiers, as of one person. None twice.")
]
Confirm: TypeAlias = Annotated[
    bool, Argument("Follow identifiers that may belong to several people, which are refused otherwise.")
]


@dataclass(frozen=True, slots=True)
class ShowPersonRequest:
    """Shows all records of a person. Errors: BadArgument, Unconfirmed, TooMany, NotPossible."""

    identifiers: Identifiers
    map: PersonMap
    _: KW_ONLY
    confirm: Confirm = False
    registry: Registry = None


SampledRecords: TypeAlias = Annotated[
    int, Argument("Records to look at in each topic, the newest.", least=1, most=100_000)
]


@dataclass(frozen=True, slots=True)
class SuggestPeopleMapRequest:
    """Suggests a map of people. Errors: NotFound, TooMany."""

    topics: Annotated[tuple[str, ...], Argument("Topics. Default: all but internal ones.")] = ()
    _: KW_ONLY
    records: SampledRecords = 1_000
    registry: Registry = None


@dataclass(frozen=True, slots=True)
class CheckPeopleMapRequest:
    """Checks a map of people against the topics. Errors: BadArgument, TooMany."""

    map: PersonMap
    _: KW_ONLY
    records: SampledRecords = 1_000
    registry: Registry = None
