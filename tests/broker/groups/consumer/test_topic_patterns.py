"""Subscriptions by regular expression in RE2's syntax, and the hash of a group's topics as written by Kafka 4.3.1."""

from __future__ import annotations

import sys
from uuid import UUID

import pytest
from xxhash import xxh3_64_intdigest

from diamant.broker.groups.consumer.metadata_hash import SPARE_HASHES, metadata_hash
from diamant.broker.groups.decisions.topic_patterns import MAX_PATTERN_LENGTH, TopicPattern, matching_topics
from diamant.protocol.errors import ErrorCode, KafkaError
from diamant.protocol.kraft.records import RegisterBrokerRecord
from diamant.storage.kraft.image import MetadataImage
from tests.broker.groups.consumer.consumer_cases import Topics

NAMES = ["a", "aa", "ab", "AB", "a.b", "a-b", "a_b", "x1", "12", "orders", "orders-dlq", "k", "{"]


@pytest.mark.parametrize(
    ("pattern", "matched"),
    [
        ("", []),
        ("a", ["a"]),
        ("a*", ["a", "aa"]),
        ("a+?", ["a", "aa"]),
        ("a.b", ["a.b", "a-b", "a_b"]),
        (r"a\.b", ["a.b"]),
        (r"\Qa.b\E", ["a.b"]),
        ("orders|x1", ["x1", "orders"]),
        ("orders(-dlq)?", ["orders", "orders-dlq"]),
        ("^orders$", ["orders"]),
        (r"\Aorders\z", ["orders"]),
        ("orders^", []),
        (r"orders\b.*", ["orders", "orders-dlq"]),
        (r"a\B.*", ["aa", "ab", "a_b"]),
        ("(?i)ab", ["ab", "AB"]),
        ("(?i:A)b", ["ab"]),
        ("a(?i)B", ["ab"]),
        ("[a-c]+", ["a", "aa", "ab"]),
        ("[^a-z]+", ["AB", "12", "{"]),
        ("[[:upper:]]+", ["AB"]),
        ("[]a]", ["a"]),
        ("[a-]b", ["ab"]),
        (r"[\w.]+", ["a", "aa", "ab", "AB", "a.b", "a_b", "x1", "12", "orders", "k"]),
        (r"\d{2}", ["12"]),
        (r"\D\d", ["x1"]),
        ("a{2}", ["aa"]),
        ("a{1,}", ["a", "aa"]),
        ("a{0,1}b", ["ab"]),
        ("a{,2}", []),
        (r"\{", ["{"]),
        ("{", ["{"]),
        (r"\x61", ["a"]),
        (r"\x{61}\142", ["ab"]),
        (r"\pL", ["a", "k"]),
        (r"\p{Lu}+", ["AB"]),
        (r"\PL+", ["12", "{"]),
        (r"\p{Greek}", []),
        ("(?P<name>a)(?<other>b)", ["ab"]),
        ("(?:a|b)+", ["a", "aa", "ab"]),
        ("(a*)*", ["a", "aa"]),
        ("(?i)\u212a", ["k"]),
        ("\u00e9", []),
        (".*", NAMES),
    ],
)
def test_a_pattern_matches_the_names_that_re2j_matches(pattern: str, matched: list[str]) -> None:
    """The names that RE2/J 1.8 matches as a whole with this pattern."""
    assert [name for name in NAMES if TopicPattern(pattern).matches(name)] == [
        name for name in NAMES if name in matched
    ]


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(a", "missing closing )"),
        ("a)", "unexpected )"),
        ("[a", "missing closing ]"),
        ("[b-a]", "invalid character class range"),
        ("[[:nope:]]", "invalid character class range"),
        (r"\pX", "invalid character class range"),
        ("*a", "missing argument to repetition operator"),
        ("{2}", "missing argument to repetition operator"),
        ("a**", "invalid nested repetition operator"),
        ("a*+", "invalid nested repetition operator"),
        ("a{1001}", "invalid repeat count"),
        ("a{3,2}", "invalid repeat count"),
        ("(?=a)", "invalid or unsupported Perl syntax"),
        ("(?<!a)", "invalid or unsupported Perl syntax"),
        ("(?>a)", "invalid or unsupported Perl syntax"),
        (r"(a)\1", "invalid escape sequence"),
        (r"\q", "invalid escape sequence"),
        (r"\Z", "invalid escape sequence"),
        ("\\", "trailing backslash at end of expression"),
        ("(?P<>a)", "invalid named capture"),
        ("a" * (MAX_PATTERN_LENGTH + 1), f"it has {MAX_PATTERN_LENGTH + 1} characters"),
        ("(((a{100}){100}){100})", "invalid repeat count"),
    ],
)
def test_patterns_that_re2j_does_not_accept_are_refused(pattern: str, reason: str) -> None:
    """Patterns that RE2/J does not accept, with its texts, and patterns that are too expensive."""
    with pytest.raises(KafkaError) as refused:
        TopicPattern(pattern)
    assert refused.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert reason in refused.value.detail


@pytest.mark.parametrize(
    ("pattern", "matched"),
    [
        ("(a+)+$", [True, False, False]),
        ("(a|a)*b", [False, False, False]),
        ("(.*a){30}", [True, False, False]),
        ("(a?){50}a{50}", [False, False, False]),
        ("(a|b)*a(a|b){200}", [True, False, False]),
    ],
)
def test_time_is_linear(pattern: str, matched: list[bool]) -> None:
    """Patterns that block a backtracking engine for hours complete at once."""
    names = ["a" * 249, "a" * 248 + "-", "ab" * 124]
    assert [TopicPattern(pattern).matches(name) for name in names] == matched


def test_matching_topics() -> None:
    """Each pattern is matched separately; an invalid one matches nothing."""
    found = matching_topics(["orders.*", "(", "nothing"], NAMES)
    assert found == {"orders.*": {"orders", "orders-dlq"}, "(": frozenset(), "nothing": frozenset()}


XXH3 = {0: 3244421341483603138, 16: 3159599325006435930, 240: 4473034316189165092, 5000: 3499038088879543845}
"""By the number of bytes, byte i being 7 i + their number: what hash4j 0.22, Kafka's library, makes of them."""


@pytest.mark.parametrize("size", XXH3)
def test_xxh3_has_kafkas_values(size: int) -> None:
    """The library returns Kafka's values."""
    data = bytes((number * 7 + size) & 0xFF for number in range(size))
    assert xxh3_64_intdigest(data) == XXH3[size] & (1 << 64) - 1


def image_of(*topics: tuple[str, str, int]) -> MetadataImage:
    cluster = Topics()
    for name, topic_id, count in topics:
        cluster.create(name, count, UUID(topic_id))
    return cluster.image


def test_same_as_kafka() -> None:
    """The hashes equal those in Kafka's epoch records of the same topics, in any order; missing topics are excluded."""
    image = image_of(
        ("t1", "602fc2c7-19b0-4afc-9a6c-627deab48da6", 6), ("t2", "4a6077b3-0bb5-4798-bd71-118044fc2f1f", 3)
    )
    assert metadata_hash(["t1"], image) == -1964651110540544141
    assert metadata_hash(["t2", "t1", "missing"], image) == 2124192195738796962
    assert metadata_hash(["missing"], image) == 0


def test_racks_and_partitions_count() -> None:
    """Another rack of a broker, or one more partition, changes the hash."""
    topic = ("t1", "602fc2c7-19b0-4afc-9a6c-627deab48da6", 6)
    image = image_of(topic)
    before = metadata_hash(["t1"], image)
    broker = RegisterBrokerRecord(broker_id=1, incarnation_id=UUID(int=1), broker_epoch=1, end_points=(), features=())
    image.brokers[1] = broker
    assert metadata_hash(["t1"], image) == before
    image.brokers[1] = broker.changed(rack="rack")
    assert metadata_hash(["t1"], image) != before
    assert metadata_hash(["t1"], image_of((*topic[:2], 7))) != before


def test_hashes_of_topics_are_remembered() -> None:
    """Hashes of any number of topics are cached until the topics are deleted: the next call computes only the group's hash.
    A grown topic is hashed again.
    """
    image = image_of(*((f"t{number}", str(UUID(int=number + 1)), 1) for number in range(2_000)))
    computed: list[UUID] = []

    class Counted(dict[UUID, tuple[int, int]]):
        def __setitem__(self, topic_id: UUID, value: tuple[int, int]) -> None:
            computed.append(topic_id)
            super().__setitem__(topic_id, value)

    remembered = Counted()
    first = metadata_hash(image.topics, image, remembered)
    assert len(computed) == 2_000
    computed.clear()
    assert metadata_hash(image.topics, image, remembered) == first
    assert computed == []
    partitions = image.topics["t7"].partitions
    partitions[1] = partitions[0]._replace(partition_id=1)
    assert metadata_hash(image.topics, image, remembered) != first
    assert computed == [UUID(int=8)]


def test_hashes_of_deleted_topics_are_forgotten() -> None:
    """The cache stays within twice the existing topics, plus a constant."""
    remembered: dict[UUID, tuple[int, int]] = {}
    for number in range(5 * SPARE_HASHES):
        image = image_of(("t", str(UUID(int=number + 1)), 1))
        metadata_hash(["t"], image, remembered)
        assert len(remembered) <= 2 + SPARE_HASHES + 1
    assert UUID(int=5 * SPARE_HASHES) in remembered


def test_a_pattern_is_refused_where_its_library_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """google-re2 has no wheels for musl. The client is told, and groups with other subscriptions work."""
    monkeypatch.setitem(sys.modules, "re2", None)
    with pytest.raises(KafkaError, match="lacks google-re2: pip install google-re2") as refused:
        TopicPattern("a.*")
    assert refused.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION
