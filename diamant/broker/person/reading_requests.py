"""The requests of operations that read people's records. They are separate so that commands can import them cheaply."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, TypeAlias

from diamant.argument import Argument, Registry

PersonMap: TypeAlias = Annotated[Mapping[str, Any], Argument("The map of people, as JSON.")]
Identifiers: TypeAlias = Annotated[
    Mapping[str, Any], Argument("Identifiers of the person by name, each a string or a list of strings.")
]
Subjects: TypeAlias = Annotated[
    list[Mapping[str, Any]], Argument("The identifiers of each person, as for one person. No person may occur twice.")
]
Confirm: TypeAlias = Annotated[
    bool,
    Argument("Follow identifiers even if they may belong to several people; otherwise, such identifiers are refused."),
]


@dataclass(frozen=True, slots=True)
class ShowPersonRequest:
    """Shows all records of a person. Errors: BadArgument, NotPossible, TooMany, Unconfirmed."""

    identifiers: Identifiers
    map: PersonMap
    _: KW_ONLY
    confirm: Confirm = False
    registry: Registry = None


SampledRecords: TypeAlias = Annotated[
    int, Argument("How many of the newest records to read in each topic.", least=1, most=100_000)
]


@dataclass(frozen=True, slots=True)
class SuggestPeopleMapRequest:
    """Suggests a map of people. Errors: NotFound, TooMany."""

    topics: Annotated[tuple[str, ...], Argument("The topics. Default: all but internal topics.")] = ()
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
