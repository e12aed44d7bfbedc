"""Places of the schemas of values: the topic `_schemas` of a log directory, a directory of files, a registry."""

from __future__ import annotations

from dataclasses import dataclass

from diamant.cleaner.values.registry import RegistryAddress, SchemaRegistry
from diamant.cleaner.values.schema_directory import SchemaDirectory
from diamant.cleaner.values.schemas import Schemas, SchemaSource
from diamant.storage.env.env import Env


@dataclass(frozen=True, slots=True)
class SchemaPlaces:
    """Places besides the topic, which comes before them. Can be pickled."""

    directory: str | None = None
    """Files as `SchemaDirectory` reads them."""
    registry: RegistryAddress | None = None

    @property
    def are_given(self) -> bool:
        """True if there are any."""
        return self.directory is not None or self.registry is not None

    def schemas(self, env: Env, *first: SchemaSource) -> Schemas:
        """Return the schemas for one operation; they are read when they are needed. `first`: sources that come first."""
        sources = [*first]
        if self.directory is not None:
            sources.append(SchemaDirectory(env, self.directory))
        if self.registry is not None:
            sources.append(SchemaRegistry(self.registry))
        return Schemas(sources)
