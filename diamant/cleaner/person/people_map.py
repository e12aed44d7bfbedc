"""The map of people: for each topic, how a person is recognised, and what a request does with the person's records.

    version: 1
    topics:
      customers:                          # a topic, or /a regular expression/ for topics without an entry of their own
        identity: {customer_id: key}      # identifier: place, or places; a record with such an identifier is the person's
        learns: {email: value.email}      # identifiers that only lead on: other topics are searched for them
        fields: {value.name: user.name}   # categories, as in Fides
        do: {blank: [value.name], with: null}     # or erase-key, remove-record, keep
        keep: {until: P10Y, because: "§ 147 AO"}  # the records stay that long, but fields are blanked anyway
        readers: [billing]

The identifiers in `identity` also lead to other topics, but a record teaches no new values of the identifier by which it was
found. If a topic's records are about several people, the topic has a list of such entries, one for each role.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from diamant.cleaner.person.keeping import Keep, parse_keep
from diamant.cleaner.person.places import WHOLE_KEY, FieldPath, parse_place
from diamant.cleaner.values.schemas import KEY

if TYPE_CHECKING:
    import re2

VERSION = 1

ERASE_KEY, REMOVE_RECORD, BLANK, KEEP = "erase-key", "remove-record", "blank", "keep"
ACTIONS = (ERASE_KEY, REMOVE_RECORD, BLANK, KEEP)

NULL, DEFAULT, EMPTY, TEXT = "null", "default", "empty", "text:"
"""Replacements for blanked fields; `TEXT` is the prefix of a fixed string."""

MAX_RULES = 10_000
MAX_PLACES = 50
"""Maximum number of identifiers in one entry, and of places for one identifier."""
_MAX_PATTERN_CHARACTERS = 500
_IDENTIFIER = re.compile(r"[A-Za-z_][\w-]{0,99}")
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_INTERNAL = "__"
_SCHEMAS_TOPIC = "_schemas"


class MapError(ValueError):
    """The map is invalid. The message says where, what was expected and what was found."""


@dataclass(frozen=True, slots=True)
class Action:
    """What is done with a person's records when the person is forgotten."""

    kind: str = KEEP
    """One of `ACTIONS`."""
    blank: tuple[FieldPath, ...] = ()
    replacement: str = NULL
    """Replacement for blanked fields: `NULL`, `DEFAULT`, `EMPTY`, or `TEXT` followed by a string."""

    def to_fields(self) -> object:
        """Return the action in the JSON form of the map."""
        if self.kind != BLANK:
            return self.kind
        return {"blank": [place.text for place in self.blank], "with": self.replacement}


@dataclass(frozen=True, slots=True)
class TopicRule:
    """One entry of the map: the records of a person in one role, in one topic or several."""

    topic: str
    """A topic's name, or a regular expression between slashes."""
    identity: Mapping[str, tuple[FieldPath, ...]]
    learns: Mapping[str, tuple[FieldPath, ...]]
    fields: Mapping[FieldPath, str]
    action: Action = Action()
    keep: Keep | None = None
    readers: tuple[str, ...] = ()

    @property
    def pattern(self) -> str | None:
        """The regular expression; None if the entry names a topic."""
        return self.topic[1:-1] if self.topic.startswith("/") else None

    @property
    def keyed_by(self) -> str | None:
        """The name of the identifier that is the whole key, if any."""
        return next((name for name, places in self.identity.items() if WHOLE_KEY in places), None)

    @property
    def places(self) -> Iterator[tuple[str, FieldPath]]:
        """All identifiers with their places."""
        for named in (self.identity, self.learns):
            for name, places in named.items():
                for place in places:
                    yield name, place

    def to_fields(self) -> dict[str, object]:
        """Return the entry in the JSON form of the map."""
        found: dict[str, object] = {"identity": _named(self.identity)}
        if self.learns:
            found["learns"] = _named(self.learns)
        if self.fields:
            found["fields"] = {place.text: category for place, category in self.fields.items()}
        found["do"] = self.action.to_fields()
        if self.keep is not None:
            found["keep"] = self.keep.to_fields()
        if self.readers:
            found["readers"] = list(self.readers)
        return found


@dataclass(frozen=True, slots=True)
class PeopleMap:
    """A whole map. Usable from any thread."""

    rules: tuple[TopicRule, ...]
    """Entries in the order of the map; entries of one topic are adjacent."""

    @property
    def identifiers(self) -> frozenset[str]:
        """The names of all identifiers."""
        return frozenset(name for rule in self.rules for name, _ in rule.places)

    def check_given(self, names: Collection[str]) -> None:
        """Check that `names` is not empty and that the map has all these identifiers. Raises MapError."""
        unknown = next((name for name in names if name not in self.identifiers), None)
        if unknown is not None or not names:
            what = "no identifier is given" if unknown is None else f"the map has no identifier {unknown!r}"
            raise MapError(f"{what}; expected one of {', '.join(sorted(self.identifiers))}")

    def of_topics(self, topics: Iterable[str]) -> dict[str, tuple[TopicRule, ...]]:
        """Return the rules for those of `topics` that the map covers. A name takes precedence over a regular expression.

        Raises MapError if two regular expressions match the same topic.
        """
        named: dict[str, list[TopicRule]] = {}
        for rule in self.rules:
            named.setdefault(rule.topic, []).append(rule)
        patterns = {text: _pattern(text) for text in named if text.startswith("/")}
        found: dict[str, tuple[TopicRule, ...]] = {}
        for topic in topics:
            if topic in named:
                found[topic] = tuple(named[topic])
                continue
            if is_internal(topic):
                continue
            matching = [text for text, pattern in patterns.items() if pattern.fullmatch(topic)]
            if len(matching) > 1:
                raise MapError(
                    f"topics: {matching[0]} and {matching[1]} both match {topic}; keep one of them, or add an entry for {topic}"
                )
            if matching:
                found[topic] = tuple(named[matching[0]])
        return found

    def without_topic(self, topics: Iterable[str]) -> list[str]:
        """Return the names and regular expressions in the map that apply to none of these topics."""
        there = list(topics)
        used = {rule.topic for rules in self.of_topics(there).values() for rule in rules}
        return list(dict.fromkeys(rule.topic for rule in self.rules if rule.topic not in used))

    def to_fields(self) -> dict[str, object]:
        """Return the map in its JSON form."""
        topics: dict[str, list[dict[str, object]]] = {}
        for rule in self.rules:
            topics.setdefault(rule.topic, []).append(rule.to_fields())
        return {"version": VERSION, "topics": {name: one if len(one) > 1 else one[0] for name, one in topics.items()}}


def is_internal(topic: str) -> bool:
    """Tell whether a topic belongs to the broker or a schema registry. The map's regular expressions never match such topics."""
    return topic.startswith(_INTERNAL) or topic == _SCHEMAS_TOPIC


def _named(places: Mapping[str, tuple[FieldPath, ...]]) -> dict[str, object]:
    return {name: [one.text for one in some] if len(some) > 1 else some[0].text for name, some in places.items()}


# -- parsing -----------------------------------------------------------------------------------------------------------


def parse_people_map(found: object) -> PeopleMap:
    """Parse the JSON form of a map. Raises MapError."""
    top = _object(found, "the map", ("version", "topics"))
    if str(top.get("version")) != str(VERSION):
        raise MapError(f"version: expected {VERSION}, found {_shown(top.get('version'))}")
    topics = top.get("topics")
    if not isinstance(topics, Mapping) or not topics:
        raise MapError(f"topics: expected an entry for at least one topic, found {_shown(topics)}")
    rules: list[TopicRule] = []
    for topic, entry in topics.items():
        _check_topic(topic)
        entries = entry if isinstance(entry, list) else [entry]
        if not entries:
            raise MapError(f"topics.{topic}: expected an entry, or a list of them, found an empty list")
        for index, one in enumerate(entries):
            rules.append(_rule(topic, one, f"topics.{topic}" + (f"[{index}]" if len(entries) > 1 else "")))
        if len(rules) > MAX_RULES:
            raise MapError(f"topics: expected at most {MAX_RULES:,} entries")
    return PeopleMap(tuple(rules))


def _check_topic(topic: object) -> None:
    if not isinstance(topic, str):
        raise MapError(f"topics: expected the name of a topic, found {_shown(topic)}")
    where = f"topics.{topic[:80]}"
    if topic.startswith("/"):
        if len(topic) < 3 or not topic.endswith("/") or len(topic) > _MAX_PATTERN_CHARACTERS:
            raise MapError(f"{where}: expected a regular expression between slashes, such as /orders-.*/")
        try:
            _pattern(topic)
        except ValueError as error:
            raise MapError(f"{where}: this is not a regular expression: {error}") from None
    elif not _TOPIC.fullmatch(topic) or topic in (".", ".."):
        raise MapError(f"{where}: expected the name of a topic, or a regular expression between slashes")


def _rule(topic: str, entry: object, where: str) -> TopicRule:
    names = ("identity", "learns", "fields", "do", "keep", "readers")
    fields = _object(entry, where, names)
    identity = _identifiers(fields.get("identity"), f"{where}.identity")
    if not identity:
        raise MapError(f"{where}.identity: expected at least one identifier, such as {{customer_id: key}}")
    rule = TopicRule(
        topic,
        identity,
        _identifiers(fields.get("learns"), f"{where}.learns"),
        _fields(fields.get("fields"), f"{where}.fields"),
        _action(fields.get("do", KEEP), f"{where}.do"),
        _keep(fields.get("keep"), f"{where}.keep"),
        _texts(fields.get("readers", []), f"{where}.readers"),
    )
    for name in rule.learns:
        if name in identity:
            raise MapError(
                f"{where}.learns.{name}: it is already in identity, from which it is learned, too; name it only once"
            )
    if rule.action.kind == ERASE_KEY and rule.keyed_by is None:
        raise MapError(f"{where}.do: erase-key needs an identifier at key, found none in identity; use remove-record")
    return rule


def _identifiers(found: object, where: str) -> dict[str, tuple[FieldPath, ...]]:
    if found is None:
        return {}
    if not isinstance(found, Mapping) or len(found) > MAX_PLACES:
        raise MapError(
            f"{where}: expected identifiers and their places, such as {{email: value.email}}, {_found(found)}"
        )
    places: dict[str, tuple[FieldPath, ...]] = {}
    for name, texts in found.items():
        if not isinstance(name, str) or not _IDENTIFIER.fullmatch(name):
            raise MapError(f"{where}: expected the name of an identifier, such as customer_id, found {_shown(name)}")
        several = texts if isinstance(texts, list) else [texts]
        if not several or len(several) > MAX_PLACES:
            raise MapError(f"{where}.{name}: expected a place, or a list of them, {_found(texts)}")
        places[name] = tuple(_place(one, f"{where}.{name}") for one in several)
    return places


def _place(found: object, where: str) -> FieldPath:
    if not isinstance(found, str):
        raise MapError(f"{where}: expected a place, such as value.email, {_found(found)}")
    try:
        return parse_place(found)
    except ValueError as error:
        raise MapError(f"{where}: {error}, found {_shown(found)}") from None


def _fields(found: object, where: str) -> dict[FieldPath, str]:
    if found is None:
        return {}
    if not isinstance(found, Mapping) or not all(isinstance(one, str) for one in found.values()):
        raise MapError(f"{where}: expected places and categories, such as {{value.name: user.name}}, {_found(found)}")
    return {_place(name, where): category for name, category in found.items()}


def _action(found: object, where: str) -> Action:
    if isinstance(found, str) and found in (ERASE_KEY, REMOVE_RECORD, KEEP):
        return Action(found)
    if not isinstance(found, Mapping):
        raise MapError(f"{where}: expected erase-key, remove-record, keep, or {{blank: [value.name]}}, {_found(found)}")
    fields = _object(found, where, ("blank", "with"))
    texts = _texts(fields.get("blank"), f"{where}.blank")
    blank = tuple(_place(one, f"{where}.blank") for one in texts)
    for place in blank:
        if place.field == KEY:
            raise MapError(
                f"{where}.blank: expected fields of the value or headers, found {place.text}: keys cannot be blanked"
            )
    if not blank:
        raise MapError(f"{where}.blank: expected at least one place, such as value.name")
    replacement = fields.get("with", NULL)
    replacement = NULL if replacement is None else replacement
    if replacement not in (NULL, DEFAULT, EMPTY) and not (
        isinstance(replacement, str) and replacement.startswith(TEXT)
    ):
        raise MapError(f"{where}.with: expected null, default, empty or text:..., {_found(replacement)}")
    return Action(BLANK, blank, replacement)


def _keep(found: object, where: str) -> Keep | None:
    if found is None:
        return None
    fields = _object(found, where, ("until", "because"))
    try:
        return parse_keep(fields.get("until"), fields.get("because"))
    except ValueError as error:
        raise MapError(f"{where}.{error}") from None


def _texts(found: object, where: str) -> tuple[str, ...]:
    if isinstance(found, str):
        return (found,)
    if not isinstance(found, Sequence) or not all(isinstance(one, str) for one in found):
        raise MapError(f"{where}: expected a list of strings, {_found(found)}")
    return tuple(found)


def _object(found: object, where: str, names: tuple[str, ...]) -> Mapping[str, Any]:
    if not isinstance(found, Mapping):
        raise MapError(f"{where}: expected an object with {', '.join(names)}, {_found(found)}")
    unknown = next((name for name in found if name not in names), None)
    if unknown is not None:
        raise MapError(f"{where}: {_shown(unknown)} is unknown; expected {', '.join(names)}")
    return found


def _found(found: object) -> str:
    return f"found {_shown(found)}"


def _shown(found: object) -> str:
    if found is None:
        return "nothing"
    if isinstance(found, Mapping):
        return "an object"
    if isinstance(found, list):
        return "a list"
    return repr(found)[:80]


def _pattern(text: str) -> re2._Regexp[str]:
    """Compile a regular expression between slashes. Raises ValueError."""
    import re2  # takes 15 ms and 3 MB, so only for maps with regular expressions

    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(text[1:-1], options=options)
    except re2.error as error:
        reason = error.args[0]
        raise ValueError(reason.decode(errors="replace") if isinstance(reason, bytes) else reason) from None
