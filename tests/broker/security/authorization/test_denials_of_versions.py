"""The denial of a whole request can be expressed in every version of its API."""

from __future__ import annotations

import pytest

from diamant.broker.dispatch.api_table import TABLE
from diamant.broker.dispatch.guard import denial
from diamant.protocol.wire.message_fields import decode_response_fields
from diamant.protocol.wire.schemas import encode_request_fields, request_class
from tests.broker.faults.test_installed_faults import codes_in, sample, versions_of

WITHOUT_A_PLACE = {(35, 1), (35, 2)}
"""DescribeLogDirs got its error code with version 3; before it the answer is empty, as Kafka's."""


@pytest.mark.parametrize("key", [key for key, row in TABLE.items() if row.whole])
def test_a_denial_is_reported_in_every_version(key: int) -> None:
    """JoinGroup, for example, may omit the protocol name only from version 7 on."""
    for version in versions_of(key):
        body = memoryview(bytearray(encode_request_fields(key, version, sample(request_class(key, version)))))
        for whole in TABLE[key].whole:
            answer = decode_response_fields(
                key, version, denial(TABLE[key].errors, key, version, body, whole.permission)
            )
            if (key, version) not in WITHOUT_A_PLACE:
                assert int(whole.permission.denial) in codes_in(answer), version
