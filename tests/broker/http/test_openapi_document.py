"""`GET /v1/openapi.json` against the specification of OpenAPI. What it has of each route is tested in `test_http_safety.py`."""

from __future__ import annotations

from openapi_spec_validator import OpenAPIV31SpecValidator

from diamant.broker.broker import Broker
from tests.broker.http_asking import ask


async def test_the_document_is_openapi(broker: Broker) -> None:
    """A validator of the specification finds no error in it, nor would it let a wrong one pass."""
    found = (await ask(broker, "GET", "/v1/openapi.json")).json
    assert [error.message for error in OpenAPIV31SpecValidator(found).iter_errors()] == []
    del found["info"]["title"]
    assert [*OpenAPIV31SpecValidator(found).iter_errors()]
