"""The iterations that most SCRAM credentials have: an invented one says the same, so that it looks like them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from diamant.broker.security.sasl.scram_keys import MIN_ITERATIONS
from diamant.protocol.kraft.records import UserScramCredentialRecord


class UsualIterations:
    """The usual iterations of each mechanism. The first login after a change counts again: 10 ms for 100,000 credentials."""

    def __init__(
        self, credentials: Callable[[], Iterable[UserScramCredentialRecord]], version: Callable[[], int]
    ) -> None:
        """`version` gives another number whenever `credentials` may have changed."""
        self._credentials = credentials
        self._version = version
        self._counted_version = -1
        self._usual: dict[int, int] = {}

    def of(self, mechanism: int) -> int:
        """Return those of a mechanism: the lowest of equally frequent ones; `MIN_ITERATIONS` without credentials."""
        version = self._version()
        if version != self._counted_version:
            counts = Counter((one.mechanism, one.iterations) for one in self._credentials())
            rarest_first = sorted(counts, key=lambda kind: (counts[kind], -kind[1]))
            self._usual = dict(rarest_first)  # of each mechanism the last one stays
            self._counted_version = version
        return self._usual.get(mechanism, MIN_ITERATIONS)
