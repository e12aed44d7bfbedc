"""The base class of immutable values declared by annotations, like frozen dataclasses with keyword arguments.

A dataclass compiles its methods when the class is created. For the records of the metadata log, that took a tenth of a
broker's start-up time. Here all classes share the same methods, which read a class's annotations when it is first used:

    class TopicRecord(FrozenRecord):
        name: Text
        partition_count: Int32 = -1

    TopicRecord(name="a") == TopicRecord(name="a", partition_count=-1)

If `fields` must return annotations as objects, the module of the class must not use `from __future__ import annotations`.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Self, dataclass_transform

NO_DEFAULT: Any = object()


class Field(NamedTuple):
    """A field of a record class; `default` is NO_DEFAULT for a required field."""

    name: str
    annotation: Any
    default: Any


@dataclass_transform(eq_default=True, kw_only_default=True, frozen_default=True)
class FrozenRecord:
    """An immutable value, compared by its fields, and hashable if they are. `changed` returns a modified copy."""

    def __init__(self, **values: Any) -> None:
        """Set the fields. Raises TypeError if a field is unknown, or if a field without a default is missing."""
        cls = type(self)
        _, names, defaults = _shape(cls)
        own = self.__dict__
        own.update(defaults)
        own.update(values)
        if len(own) != len(names) or not own.keys() <= names:
            missing, unknown = sorted(names - own.keys()), sorted(own.keys() - names)
            raise TypeError(f"{cls.__name__}: missing {missing}, unknown {unknown}")

    def changed(self, **values: Any) -> Self:
        """Return a copy in which the given fields have the given values."""
        return type(self)(**{**self.__dict__, **values})

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} cannot be changed: {name}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} cannot be changed: {name}")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash((type(self), *(self.__dict__[field.name] for field in fields(type(self)))))

    def __repr__(self) -> str:
        shown = ", ".join(f"{field.name}={self.__dict__[field.name]!r}" for field in fields(type(self)))
        return f"{type(self).__name__}({shown})"


def fields(cls: type[Any]) -> tuple[Field, ...]:
    """Return the fields of a record class or NamedTuple, in order of declaration."""
    return _shape(cls).fields


def made_of(cls: type[Any], values: dict[str, object]) -> Any:
    """Make a record from values for all its fields, without checks."""
    record = object.__new__(cls)
    record.__dict__.update(values)
    return record


class _Shape(NamedTuple):
    fields: tuple[Field, ...]
    names: frozenset[str]
    defaults: dict[str, object]


_SHAPES: dict[type[Any], _Shape] = {}
"""One entry for each record class that has been used."""


def _shape(cls: type[Any]) -> _Shape:
    shape = _SHAPES.get(cls)
    if shape is None:
        given = getattr(cls, "_field_defaults", cls.__dict__)
        fields = tuple(
            Field(name, annotation, given.get(name, NO_DEFAULT)) for name, annotation in cls.__annotations__.items()
        )
        defaults = {field.name: field.default for field in fields if field.default is not NO_DEFAULT}
        shape = _SHAPES[cls] = _Shape(fields, frozenset(field.name for field in fields), defaults)
    return shape
