"""A thousand random schemas and values of each format: only the named fields differ."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from diamant.cleaner.values.edits import EMPTY, NULL, TEXT
from tests.cleaner.redaction.test_json_edit import STYLES, VALUES, check_random_json
from tests.cleaner.values.test_avro import schemas_and_values
from tests.cleaner.values.test_avro_edit import check_random_value
from tests.cleaner.values.test_protobuf import messages
from tests.cleaner.values.test_protobuf_edit import check_random_message

pytestmark = pytest.mark.long

KINDS = st.sampled_from([NULL, EMPTY, TEXT])
THOUSAND = settings(max_examples=1_000, deadline=None, suppress_health_check=list(HealthCheck))


@THOUSAND
@given(st.data(), VALUES, STYLES, KINDS)
def test_many_fields_of_json_change(data: st.DataObject, value: Any, style: Any, kind: str) -> None:
    """The bytes around the fields are the same."""
    check_random_json(data, value, style, kind)


@THOUSAND
@given(st.data(), schemas_and_values(), KINDS)
def test_many_fields_of_avro_change(data: st.DataObject, one: tuple[Any, Any], kind: str) -> None:
    """As fastavro reads them."""
    check_random_value(data, one, kind)


@THOUSAND
@given(st.data(), messages(), KINDS)
def test_many_fields_of_protobuf_change(data: st.DataObject, one: tuple[str, Any], kind: str) -> None:
    """As the protobuf library reads them."""
    check_random_message(data, one, kind)
