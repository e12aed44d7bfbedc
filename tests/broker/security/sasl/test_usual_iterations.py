"""The iterations that an invented credential says."""

from __future__ import annotations

from diamant.broker.security.sasl.scram_keys import MIN_ITERATIONS
from diamant.broker.security.sasl.usual_iterations import UsualIterations
from diamant.protocol.kraft.records import UserScramCredentialRecord


def stored(mechanism: int, *iterations: int) -> list[UserScramCredentialRecord]:
    """Credentials of one mechanism."""
    return [
        UserScramCredentialRecord(
            name=f"user{number}", mechanism=mechanism, salt=b"s", stored_key=b"k", server_key=b"k", iterations=each
        )
        for number, each in enumerate(iterations)
    ]


def test_the_most_frequent_of_each_mechanism() -> None:
    """Of several that are equally frequent it is the least, in whatever order they come; without any it is Kafka's default."""
    credentials = [*stored(1, 4096, 8192, 8192), *stored(2, 16384, 5000, 16384, 5000)]
    for order in (credentials, credentials[::-1]):
        usual = UsualIterations(lambda order=order: order, lambda: 0)  # type: ignore[misc]
        assert [usual.of(1), usual.of(2), usual.of(3)] == [8192, 5000, MIN_ITERATIONS]


def test_they_are_counted_once_for_each_version() -> None:
    """A login costs a comparison where nothing has changed."""
    credentials, asked, versions = stored(1, 8192), [], [1]

    def count() -> list[UserScramCredentialRecord]:
        asked.append(versions[-1])
        return credentials

    usual = UsualIterations(count, lambda: versions[-1])
    assert [usual.of(1), usual.of(1), usual.of(2)] == [8192, 8192, MIN_ITERATIONS]
    credentials.clear()
    versions.append(2)
    assert [usual.of(1), usual.of(1)] == [MIN_ITERATIONS, MIN_ITERATIONS]
    assert asked == [1, 2]
