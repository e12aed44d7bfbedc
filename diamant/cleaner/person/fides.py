"""Converts Fides datasets (`dataset:` in YAML) to maps of people, and maps to datasets.

    collection                       a topic
    field, possibly nested           the place `value.NAME`, except that `key`, `key.NAME` and `header.NAME` remain unchanged
    fides_meta.identity              an identifier
    fides_meta.references            the field has the same identifier as the field that it refers to
    data_categories                  the category of the field

Fides does not say what to do with a topic, so the entries of the map keep everything until `do` is added. If a collection has
several identifiers, the primary key (or else the first one) recognises a person, and the others only lead to other topics.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from diamant.cleaner.person.people_map import VERSION, MapError, PeopleMap


class _Field(NamedTuple):
    place: str
    categories: tuple[str, ...]
    identity: str | None
    references: tuple[str, ...]
    """Other fields, as `dataset.collection.field`."""
    is_primary: bool


def map_of_dataset(found: Mapping[str, Any]) -> dict[str, object]:
    """Convert a dataset to the JSON form of a map. Raises MapError."""
    collections: dict[str, list[_Field]] = {}
    owners: dict[str, str] = {}
    for dataset in _list(found.get("dataset"), "dataset"):
        name = _text(dataset.get("fides_key", ""), "dataset: fides_key")
        for collection in _list(dataset.get("collections"), f"dataset {name}: collections"):
            topic = _text(collection.get("name", ""), f"dataset {name}: the name of a collection")
            fields = list(_fields(collection, topic, ()))
            collections[topic] = fields
            for one in fields:
                if one.identity is not None:
                    owners[f"{name}.{topic}.{one.place.removeprefix('value.')}"] = one.identity
    topics = {}
    for topic, fields in collections.items():
        identifiers: dict[str, str] = {}
        first = None
        for one in fields:
            referred = next((owners[other] for other in one.references if other in owners), None)
            identifier = one.identity or referred
            if identifier is not None and identifier not in identifiers:
                identifiers[identifier] = one.place
                if one.is_primary or first is None:
                    first = identifier
        if first is not None:
            entry: dict[str, object] = {"identity": {first: identifiers.pop(first)}}
            if identifiers:
                entry["learns"] = identifiers
            if categories := {one.place: one.categories[0] for one in fields if one.categories}:
                entry["fields"] = categories
            topics[topic] = entry
    if not topics:
        raise MapError("dataset: no field has fides_meta.identity, so nothing says how a person is recognised")
    return {"version": VERSION, "topics": topics}


def dataset_of(people: PeopleMap, key: str) -> dict[str, object]:
    """Convert a map to a dataset with this `fides_key`. Regular expressions for topics become names of collections."""
    collections: dict[str, dict[str, dict[str, object]]] = {}
    for rule in people.rules:
        fields = collections.setdefault(rule.topic, {})
        for place, category in rule.fields.items():
            fields.setdefault(place.text, {})["data_categories"] = [category]
        for name, place in rule.places:
            meta: dict[str, object] = {"identity": name}
            if name in rule.identity:
                meta["primary_key"] = True
            fields.setdefault(place.text, {})["fides_meta"] = meta
    rows = [{"name": topic, "fields": _nested(fields)} for topic, fields in collections.items()]
    return {"dataset": [{"fides_key": key, "name": key, "collections": rows}]}


def _nested(fields: Mapping[str, Mapping[str, object]]) -> list[dict[str, object]]:
    return [{"name": text.removeprefix("value."), **found} for text, found in fields.items()]


def _fields(found: Mapping[str, Any], where: str, path: tuple[str, ...]) -> Iterator[_Field]:
    for one in _list(found.get("fields"), f"dataset, collection {where}: fields"):
        steps = (*path, _text(one.get("name", ""), f"dataset, collection {where}: the name of a field"))
        name = ".".join(steps)
        meta = one.get("fides_meta") or one.get("fidesops_meta") or {}
        if not isinstance(meta, Mapping):
            raise MapError(f"dataset, collection {where}, field {name}: fides_meta: expected an object")
        identity = meta.get("identity")
        references = tuple(
            f"{other.get('dataset')}.{other.get('field')}"
            for other in meta.get("references") or []
            if isinstance(other, Mapping)
        )
        categories = one.get("data_categories") or []
        is_elsewhere = name == "key" or name.startswith(("key.", "header."))
        yield _Field(
            name if is_elsewhere else f"value.{name}",
            tuple(map(str, categories)) if isinstance(categories, list) else (),
            _text(identity, f"dataset, collection {where}, field {name}: identity") if identity else None,
            references,
            str(meta.get("primary_key", "")).lower() == "true",
        )
        if one.get("fields"):
            yield from _fields(one, where, steps)


def _text(found: object, where: str) -> str:
    if not isinstance(found, str):
        raise MapError(f"{where}: expected a string")
    return found


def _list(found: object, where: str) -> list[Mapping[str, Any]]:
    if not isinstance(found, list) or not all(isinstance(one, Mapping) for one in found):
        raise MapError(f"{where}: expected a list of objects")
    return found
