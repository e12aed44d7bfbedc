"""The iterations that most SCRAM credentials have: an invented one says the same, so that it looks like them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from diamant.broker.security.sasl.scram_keys import MIN_ITERATIONS
from diamant.protocol.kraft.records import UserScramCredentialRecord


class UsualIterations:
    """By mechanism; counted again with the first login after a change, some 10 ms for 100,000 credentials."""

    def __init__(
        self, credentials: Callable[[], Iterable[UserScramCredentialRecord]], version: Callable[[], int]
    ) -> None:
        """`version`: another number whenever `credentials` may give others."""
        self._credentials = credentials
        self._version = version
        self._counted_version = -1
        self._usual: dict[int, int] = {}

    def of(self, mechanism: int) -> int:
        """Those of a mechanism, by its number: of equally frequent ones the least, without any `MIN_ITERATIONS`."""
        version = self._version()
        if version != self._counted_version:
            counts = Counter((one.mechanism, one.iterations) for one in self._credentials())
            rarest_first = sorted(counts, key=lambda kind: (counts[kind], -kind[1]))
            self._usual = dict(rarest_first)  # of each mechanism the last one stays
            self._counted_version = version
        return self._usual.get(mechanism, MIN_ITERATIONS)
