"""The JSON schema of a map of people, for editors and other programs; `people_map.parse_people_map` checks more."""

from __future__ import annotations

from diamant.cleaner.person import people_map

_PLACE = {"type": "string", "pattern": r"^(key|key[.\[].+|value[.\[].+|header[.\[].+)$"}
_PLACES = {"anyOf": [_PLACE, {"type": "array", "items": _PLACE, "minItems": 1, "maxItems": people_map.MAX_PLACES}]}
_TEXTS = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}


def people_map_schema() -> dict[str, object]:
    """Return the schema."""
    entry = _object(
        {
            "identity": {
                **_identifiers("Identifiers by which a person is recognised, with their places."),
                "minProperties": 1,
            },
            "learns": _identifiers("Identifiers that only lead on to other topics, with their places."),
            "fields": _mapping("Categories of fields, such as user.name in Fides's taxonomy.", {"type": "string"}),
            "do": {
                "description": "The fate of a person's records when they are to be forgotten. Default: keep.",
                "anyOf": [
                    {"enum": [one for one in people_map.ACTIONS if one != people_map.BLANK]},
                    _object({"blank": _PLACES, "with": {"anyOf": [{"type": "null"}, _replacement()]}}, "blank"),
                ],
            },
            "keep": _object(
                {
                    "until": {"description": "A period from the record on, or a date.", "type": "string"},
                    "because": {"type": "string", "minLength": 1},
                },
                "until",
                "because",
            ),
            "readers": {"description": "Those who read the topic.", **_TEXTS},
        },
        "identity",
    )
    entries = {"anyOf": [entry, {"type": "array", "items": entry, "minItems": 1}]}
    topics = {
        "description": "By the name of a topic, or a regular expression between slashes; a list for several people per record.",
        "type": "object",
        "minProperties": 1,
        "additionalProperties": entries,
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Diamant's map of people",
        **_object({"version": {"const": people_map.VERSION}, "topics": topics}, "version", "topics"),
    }


def _replacement() -> dict[str, object]:
    words = "|".join((people_map.NULL, people_map.DEFAULT, people_map.EMPTY, f"{people_map.TEXT}.*"))
    return {"type": "string", "pattern": f"^({words})$"}


def _identifiers(description: str) -> dict[str, object]:
    return _mapping(description, _PLACES)


def _mapping(description: str, values: object) -> dict[str, object]:
    return {
        "description": description,
        "type": "object",
        "additionalProperties": values,
        "maxProperties": people_map.MAX_PLACES,
    }


def _object(properties: dict[str, object], *required: str) -> dict[str, object]:
    return {"type": "object", "properties": properties, "required": [*required], "additionalProperties": False}
