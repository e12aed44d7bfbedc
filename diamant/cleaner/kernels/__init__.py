"""Everything that numba compiles, and the cache of its code, which digests this folder."""
