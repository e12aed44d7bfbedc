"""The guard: bodies that it passes, edits or refuses, and the survival of the process."""

import subprocess
import sys

import pytest

from diamant.protocol.errors import ProtocolError
from diamant.protocol.primitives import MAX_ELEMENTS, encode_uvarint, skip_tags
from diamant.protocol.wire.guard import compile_guard
from diamant.protocol.wire.schemas import decode_request, encode_request_fields, request_class
from tests.effort import is_quick

FETCH, METADATA, OFFSET_COMMIT, HEARTBEAT, CREATE_TOPICS = 1, 3, 8, 12, 19
DESCRIBE_TOPIC_PARTITIONS, SASL_AUTHENTICATE, LIST_REASSIGNMENTS = 75, 36, 46

UVARINT_2_35 = b"\xff\xff\xff\xff\x7f"
UVARINT_2_32 = b"\xff\xff\xff\xff\x0f"
INT32_MAX = b"\x7f\xff\xff\xff"


def test_a_body_without_need_for_change_is_returned_as_it_is() -> None:
    """The guard copies nothing if no edit is needed."""
    body = encode_request_fields(METADATA, 12, {"topics": [{"name": "t"}]})
    assert compile_guard(request_class(METADATA, 12))(body) is body


UNFIT = {
    "array of 2^35-2": (METADATA, 12, UVARINT_2_35),
    "array of 2^32-2": (METADATA, 12, UVARINT_2_32),
    "endless varint": (METADATA, 12, b"\xff\xff\xff\xff\xff\x01"),
    "array longer than the body": (METADATA, 12, b"\x05\x00\x00\x00"),
    "string of 2^32-2": (METADATA, 12, b"\x02" + bytes(16) + UVARINT_2_32 + b"\x00\x00\x00\x00\x00"),
    "classic array of 2^31-1": (METADATA, 1, INT32_MAX),
    "classic array of -2^31": (METADATA, 1, b"\x80\x00\x00\x00"),
    "classic array of -2": (METADATA, 1, b"\xff\xff\xff\xfe"),
    "classic null array": (METADATA, 0, b"\xff\xff\xff\xff"),
    "classic string too long": (METADATA, 1, b"\x00\x00\x00\x01\x7f\xffab"),
    "classic null string": (METADATA, 1, b"\x00\x00\x00\x01\xff\xff"),
    "classic string of -2": (METADATA, 1, b"\x00\x00\x00\x01\xff\xfe"),
    "compact null string": (METADATA, 9, b"\x02\x00\x00\x00\x00\x00\x00"),
    "unknown tag of 2^32-1": (METADATA, 12, b"\x01\x00\x00\x01\x07" + UVARINT_2_32),
    "2^32-1 tags": (METADATA, 12, b"\x01\x00\x00" + UVARINT_2_32),
    "classic bytes of 2^31-1": (SASL_AUTHENTICATE, 0, INT32_MAX + b"ab"),
    "classic null bytes": (SASL_AUTHENTICATE, 0, b"\xff\xff\xff\xff"),
    "compact bytes of 2^32-2": (SASL_AUTHENTICATE, 2, UVARINT_2_32 + b"\x00"),
    "array of fixed size": (LIST_REASSIGNMENTS, 0, bytes(4) + b"\x02\x02t" + UVARINT_2_32 + b"\x00\x00"),
    "bad marker of a structure": (DESCRIBE_TOPIC_PARTITIONS, 0, b"\x01\x00\x00\x00\x64\x02\x00"),
    "string in a nullable structure": (DESCRIBE_TOPIC_PARTITIONS, 0, b"\x01\x00\x00\x00\x64\x01" + UVARINT_2_32),
    "known tag twice": (FETCH, 12, bytes(25) + b"\x01\x01\x01\x02\x00\x02\x02\x61\x00\x00"),
    "known tag shorter than its size": (FETCH, 12, bytes(25) + b"\x01\x01\x01\x01\x00\x05\x02\x61\x00\x00\x00"),
    "empty body": (HEARTBEAT, 0, b""),
    "one byte": (HEARTBEAT, 0, b"\x00"),
}


@pytest.mark.parametrize(("api_key", "version", "body"), UNFIT.values(), ids=list(UNFIT))
def test_a_body_that_does_not_fit_the_schema_is_refused(api_key: int, version: int, body: bytes) -> None:
    """Counts and lengths beyond the body, forbidden nulls and early ends never reach kio."""
    with pytest.raises(ProtocolError, match=rf"v{version}: "):
        compile_guard(request_class(api_key, version))(body)


def test_trailing_bytes_are_ignored() -> None:
    """Like Kafka, the guard ignores bytes after the request: librdkafka sends one after AlterUserScramCredentials."""
    body = encode_request_fields(METADATA, 12, {})
    assert decode_request(METADATA, 12, body + b"\x00") == decode_request(METADATA, 12, body)


@pytest.mark.parametrize("count", [10_000, 10_001])
def test_tagged_fields_are_limited(count: int) -> None:
    """As in Kafka 4.4, a block has at most 10,000 of them, in a request and in its header."""
    block = encode_uvarint(count) + b"".join(encode_uvarint(10 + tag) + b"\0" for tag in range(count))
    body = encode_request_fields(METADATA, 12, {})[:-1] + block
    for read in (lambda: decode_request(METADATA, 12, body), lambda: skip_tags(memoryview(block), 0, len(block))):
        if count == 10_000:
            read()
            continue
        with pytest.raises(ProtocolError, match=r"10001 tagged fields .*at most 10000"):
            read()


@pytest.mark.slow
def test_elements_are_limited() -> None:
    """More array elements than MAX_ELEMENTS are refused even if the body has room for them."""
    count = MAX_ELEMENTS // 50 + 1
    topics = [{"name": "t", "partitions": [{"partition_index": n} for n in range(count)]}]
    body = encode_request_fields(OFFSET_COMMIT, 8, {"group_id": "g", "topics": topics * 50})
    with pytest.raises(ProtocolError, match=f"more than {MAX_ELEMENTS} array elements"):
        decode_request(OFFSET_COMMIT, 8, body)


def test_unknown_tags_are_cut_out() -> None:
    """Unknown tagged fields are removed at every level (KIP-482)."""
    tags = b"\x02\x05\x03abc\x90\x4e\x00"
    topic = bytes(16) + b"\x02t"
    plain = b"\x03" + topic + b"\x00" + topic + b"\x00" + b"\x01\x00\x00"
    tagged = b"\x03" + topic + tags + topic + tags + b"\x01\x00" + tags
    assert compile_guard(request_class(METADATA, 12))(tagged) == plain
    assert decode_request(METADATA, 12, tagged) == decode_request(METADATA, 12, plain)


def test_known_tags_stay_and_lose_their_unknown_tags() -> None:
    """A block with known and unknown tagged fields keeps the known ones, without unknown fields within them."""
    guard = compile_guard(request_class(FETCH, 15))
    head = bytes(21) + b"\x01\x01\x01"
    state = bytes(3) + b"\x09" + bytes(8)
    tagged = head + b"\x03" + b"\x00\x02\x02c" + b"\x01\x10" + state + b"\x01\x07\x01x" + b"\x09\x00"
    assert guard(tagged) == head + b"\x02" + b"\x00\x02\x02c" + b"\x01\x0d" + state + b"\x00"
    request = decode_request(FETCH, 15, tagged)
    assert (request.cluster_id, request.replica_state.replica_id) == ("c", 9)


def test_null_structures_pass() -> None:
    """A nullable structure is marked by 255 (null) or 1 before its fields (KIP-893)."""
    for cursor, expected in ((b"\xff", None), (b"\x01\x02t\x00\x00\x00\x05\x00", ("t", 5))):
        request = decode_request(DESCRIBE_TOPIC_PARTITIONS, 0, b"\x01\x00\x00\x00\x64" + cursor + b"\x00")
        found = request.cursor and (request.cursor.topic_name, request.cursor.partition_index)
        assert found == expected


HOSTILE_SWEEP = """
import random, resource, sys
# Far above the needs of a valid request, far below those of a trusted hostile length.
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
from diamant.protocol.wire.apis import is_flexible
from diamant.protocol.errors import ProtocolError
from diamant.protocol.wire.schemas import decode_request, request_class
from tests.protocol.random_messages import entity, kio_bytes, random_fields, served_versions

rng = random.Random(20)
refused = 0
for api_key, version in served_versions():
    struct = request_class(api_key, version)
    body = kio_bytes(entity(struct, random_fields(rng, struct, max_elements=2)))
    hostile = [bytes.fromhex(text) for text in ("ffffffff7f", "ffffffff0f", "7fffffff", "fffffffe")]
    for position in range(0, min(len(body), 200), int(sys.argv[1])):
        for length in hostile:
            for replaced in (1, len(length)):
                try:
                    decode_request(api_key, version, body[:position] + length + body[position + replaced:])
                except ProtocolError:
                    refused += 1
print(refused)
"""


@pytest.mark.slow
def test_hostile_lengths_at_every_position_of_every_request() -> None:
    """The process survives huge and negative lengths anywhere in requests of all served versions.

    kio alone is ended by the first of them (SIGABRT), hence a process of its own.
    """
    step = 4 if is_quick() else 1
    done = subprocess.run([sys.executable, "-c", HOSTILE_SWEEP, str(step)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) > 10_000 // step
