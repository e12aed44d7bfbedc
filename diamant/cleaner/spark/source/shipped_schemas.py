"""Schemas for tasks. The driver reads the `_schemas` topics, and sends their schemas along with the addresses of other sources.

An executor process looks up each schema in a directory or a registry only once, however many tasks it runs.
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from diamant.cleaner.spark.environment.locations import Location
from diamant.cleaner.values.schema_places import SchemaPlaces
from diamant.cleaner.values.schemas import Schemas
from diamant.cleaner.values.schemas_topic import SCHEMAS_TOPIC, RegisteredSchemas, SchemasTopic
from diamant.storage import names
from diamant.storage.env.env import RealEnv

_MAX_KEPT = 16
_kept: dict[tuple[str, str], Schemas] = {}
"""The schemas kept in this process, by token and log directory."""


@dataclass(frozen=True, slots=True)
class ShippedSchemas:
    """The schemas of some log directories. Can be pickled."""

    places: SchemaPlaces
    of_directories: Mapping[str, RegisteredSchemas]
    """The schemas in the `_schemas` topic of each log directory, by the directory's location as a string."""
    token: str = field(default_factory=lambda: uuid.uuid4().hex)

    @classmethod
    def read(cls, places: SchemaPlaces, log_directories: Iterable[Location]) -> ShippedSchemas:
        """Read the `_schemas` topics; called in the driver."""
        return cls(places, {str(one): _registered(one) for one in log_directories})

    def schemas(self, log_directory: Location) -> Schemas:
        """Return the schemas for the records below a log directory; callable in any process."""
        place = self.token, str(log_directory)
        found = _kept.get(place)
        if found is None:
            if len(_kept) >= _MAX_KEPT:
                _kept.clear()
            found = _kept[place] = self.places.schemas(
                RealEnv(), self.of_directories.get(place[1], RegisteredSchemas())
            )
        return found


def _registered(log_directory: Location) -> RegisteredSchemas:
    if log_directory.is_local:
        return SchemasTopic(RealEnv(), log_directory.path).load()
    name = names.partition_dir_name(SCHEMAS_TOPIC, 0)
    place = log_directory.child(name)
    with tempfile.TemporaryDirectory(prefix="diamant-schemas-") as copy:
        Path(copy, name).mkdir()
        try:
            for entry in place.entries():
                if entry.name.endswith(names.LOG_SUFFIX):
                    Path(copy, name, entry.name).write_bytes(place.child(entry.name).read_bytes())
        except OSError:
            return RegisteredSchemas()
        return SchemasTopic(RealEnv(), copy).load()
