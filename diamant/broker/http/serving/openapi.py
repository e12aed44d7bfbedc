"""The OpenAPI 3.1 document of the HTTP port, made from its routes: `/v1/openapi.json`."""

from __future__ import annotations

from collections.abc import Iterable

from diamant.broker.http.serving.jobs import DEFAULT_WAIT_MS, MAX_WAIT_MS
from diamant.broker.http.serving.route import Route
from diamant.broker.operation_errors import KINDS
from diamant.broker.operations.calls.parameters import Param
from diamant.json_types import JsonObject
from diamant.version import __version__

JSON = "application/json"

WAIT_PARAM = Param(
    "wait_ms",
    "integer",
    "How long to wait for the end. After that, the response is 202 with the job.",
    default=DEFAULT_WAIT_MS,
    least=0,
    most=MAX_WAIT_MS,
)

"""The query parameter of calls that run as jobs."""
_KEY_SCHEMA: JsonObject = {
    "description": "The bytes of a record's key.",
    "oneOf": [
        {"type": "string", "description": "UTF-8"},
        *(
            {
                "type": "object",
                "properties": {form: {"type": "string"}},
                "required": [form],
                "additionalProperties": False,
            }
            for form in ("text", "hex", "base64")
        ),
    ],
}

_ERROR_SCHEMA = {
    "type": "object",
    "properties": {"error": {"type": "string"}, "code": {"enum": [*KINDS]}},
    "required": ["error", "code"],
}

_JOB_SCHEMA = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "href": {"type": "string"},
        "verb": {"type": "string"},
        "state": {"enum": ["running", "done", "failed"]},
        "progress": {
            "type": "object",
            "properties": {
                "stage": {"type": "string"},
                "done": {"type": "integer"},
                "total": {"type": ["integer", "null"]},
                "unit": {"type": "string"},
                "rate_per_s": {"type": ["number", "null"]},
                "left_s": {"type": ["number", "null"]},
            },
        },
        "started_ms": {"type": "integer"},
        "ended_ms": {"type": ["integer", "null"]},
        "is_result_kept": {"type": "boolean"},
        "result": {"type": ["object", "null"]},
        "error": {"type": ["object", "null"]},
    },
}


def document(routes: Iterable[Route], *, needs_token: bool) -> JsonObject:
    """Return the OpenAPI document of these routes."""
    paths: dict[str, JsonObject] = {}
    for route in sorted(routes, key=lambda route: (route.path, route.method)):
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, needs_token=needs_token)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Diamant",
            "version": __version__,
            "description": "A Diamant broker's operations beyond Kafka's protocol. Times are milliseconds since the Unix epoch.",
        },
        "paths": paths,
        "components": {
            "schemas": {"Error": _ERROR_SCHEMA, "Job": _JOB_SCHEMA, "Key": _KEY_SCHEMA},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: Route, *, needs_token: bool) -> JsonObject:
    steps = [step[1:-1] for step in route.path.split("/") if step.startswith("{")]
    query = (*route.query, WAIT_PARAM) if route.is_job else route.query
    operation: JsonObject = {
        "operationId": f"{route.method.lower()}{''.join(_word(step) for step in route.path.split('/'))}",
        "summary": route.summary,
        "parameters": [
            *({"name": step, "in": "path", "required": True, "schema": {"type": "string"}} for step in steps),
            *(
                {
                    "name": param.name,
                    "in": "query",
                    "required": param.is_required,
                    "description": param.doc,
                    "schema": _schema(param),
                }
                for param in query
            ),
        ],
        "responses": {
            "200": {"description": route.answer, "content": {JSON: {"schema": {"type": "object"}}}},
            "default": {
                "description": "The error, and what to do about it.",
                "content": {JSON: {"schema": {"$ref": "#/components/schemas/Error"}}},
            },
        },
    }
    if route.is_job:
        operation["responses"]["202"] = {
            "description": "The call continues as a job.",
            "headers": {"Location": {"schema": {"type": "string"}}},
            "content": {JSON: {"schema": {"$ref": "#/components/schemas/Job"}}},
        }
    if route.method in ("POST", "PUT"):
        operation["requestBody"] = {
            "required": any(param.is_required for param in route.fields),
            "content": {JSON: {"schema": _body_schema(route)}},
        }
    if route.changes_data:
        operation["security"] = [{"token": []}] if needs_token else [{"token": []}, {}]
    return operation


def _body_schema(route: Route) -> JsonObject:
    schema: JsonObject = {
        "type": "object",
        "additionalProperties": False,
        "properties": {param.name: {**_schema(param), "description": param.doc} for param in route.fields},
    }
    if required := [param.name for param in route.fields if param.is_required]:
        schema["required"] = required
    return schema


def _schema(param: Param) -> JsonObject:
    schema: JsonObject
    if param.type == "key":
        schema = {"$ref": "#/components/schemas/Key"}
    elif param.type == "strings":
        schema = {"oneOf": [{"type": "array", "items": {"type": "string"}}, {"type": "string"}]}
    elif param.type == "objects":
        schema = {"type": "array", "items": {"type": "object"}}
    elif param.type == "duration":
        number = {"type": "number", "minimum": param.least, "maximum": param.most, "description": "Seconds."}
        schema = {"oneOf": [number, {"type": "string", "description": "A duration such as `10m`."}]}
    elif param.type == "any":
        schema = {}
    else:
        schema = {"type": param.type}
    if param.type == "integer":
        schema |= {"minimum": param.least, "maximum": param.most}
    if param.choices:
        schema["enum"] = list(param.choices)
    if param.default is not None:
        schema["default"] = param.default
    return schema


def _word(step: str) -> str:
    return "".join(part.capitalize() for part in step.strip("{}").replace(".", "_").split("_"))
