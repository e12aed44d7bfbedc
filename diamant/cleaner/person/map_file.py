"""Files with a map of people: YAML or JSON in the form that `people_map` describes, or a Fides dataset.

All YAML scalars are read as strings, so `no` is not a boolean, and a date stays as it is written. Aliases, which could expand a
small file to a huge one, and duplicate names are rejected.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, NoReturn

from diamant.cleaner.person.people_map import MapError, PeopleMap, parse_people_map

MAX_BYTES = 1024 * 1024
_MAX_DEPTH = 50


def parse_map_file(content: bytes, name: str) -> PeopleMap:
    """Parse the content of a map file. Raises MapError, whose message has the file's name and the place in the file."""
    file = PurePath(name).name
    try:
        found = parse_yaml(content)
        if isinstance(found, dict) and "dataset" in found:
            from diamant.cleaner.person.fides import map_of_dataset

            found = map_of_dataset(found)
        return parse_people_map(found)
    except MapError as error:
        raise MapError(f"{file}: {error}") from None


def draft_text(suggestion: Mapping[str, Any]) -> str:
    """Return a suggestion (`Suggestion.to_fields`) as a draft of a map in YAML, with the reasons in comments."""
    lines = [
        "# A draft, made from samples: check every entry, its `do`, and what it leaves out.",
        "# Before each topic are the places of identifiers with their reasons, their records in the sample, and their values.",
        "version: 1",
        "topics:",
    ]
    for topic, entry in suggestion["map"]["topics"].items():
        lines.append(f"  # {topic}: {suggestion['sampled'][topic]:,} records looked at")
        for one in suggestion["places"]:
            if one["topic"] == topic:
                reasons = "; ".join(one["reasons"]) or "its place"
                counts = f"{one['records']:,} records, {one['distinct']:,} values"
                lines.append(f"  #   {one['place']} is {one['identifier']}: {reasons} ({counts})")
        lines += [f"  {line}" for line in _yaml({topic: entry}).splitlines()]
    for topic, count in suggestion["undecodable"].items():
        lines.append(f"# {topic}: {count:,} values of the sample are neither JSON nor have a known schema")
    return (
        "\n".join([*lines, ""]) if suggestion["map"]["topics"] else "# No field looks like an identifier of people.\n"
    )


def _yaml(fields: Mapping[str, object]) -> str:
    import yaml

    text: str = yaml.safe_dump(dict(fields), sort_keys=False, allow_unicode=True, width=120)
    return text


def dataset_text(people: PeopleMap, key: str) -> str:
    """Convert a map to a Fides dataset with this `fides_key`, in YAML."""
    from diamant.cleaner.person.fides import dataset_of

    return _yaml(dataset_of(people, key))


def parse_yaml(content: bytes) -> Any:
    """Parse a YAML or JSON file into dictionaries, lists and strings. Raises MapError."""
    import yaml

    if len(content) > MAX_BYTES:
        raise MapError(f"the file has {len(content):,} bytes; at most {MAX_BYTES:,} are allowed")

    def refuse(node: yaml.Node, reason: str) -> NoReturn:
        raise MapError(f"line {node.start_mark.line + 1}: {reason}")

    def value(node: yaml.Node) -> Any:
        if isinstance(node, yaml.SequenceNode):
            return [value(one) for one in node.value]
        if not isinstance(node, yaml.MappingNode):
            return node.value
        found: dict[str, object] = {}
        for key, one in node.value:
            if not isinstance(key, yaml.ScalarNode):
                refuse(key, "expected a name")
            if key.value in found:
                refuse(key, f"{key.value[:80]} is given twice")
            found[key.value] = value(one)
        return found

    try:
        text = content.decode("utf-8-sig")
        depth = 0
        for event in yaml.parse(text, Loader=yaml.BaseLoader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _MAX_DEPTH:  # checked while parsing, because PyYAML takes longer for each further level
                raise MapError(f"line {event.start_mark.line + 1}: more than {_MAX_DEPTH} levels")
            if isinstance(event, yaml.AliasEvent):
                raise MapError(f"line {event.start_mark.line + 1}: aliases (*{event.anchor}) are not allowed")
        root = yaml.compose(text, Loader=yaml.BaseLoader)
    except UnicodeDecodeError:
        raise MapError("expected UTF-8") from None
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f"line {error.problem_mark.line + 1}: "
        raise MapError(f"{line}this is neither YAML nor JSON: {error.problem}") from None
    except yaml.YAMLError as error:
        raise MapError(f"this is neither YAML nor JSON: {error}") from None
    if root is None:
        raise MapError("the file is empty")
    return value(root)
