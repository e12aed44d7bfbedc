"""The answers of three registries in one server, as far as the serializers ask: Confluent's, Apicurio's (v2), AWS Glue's.

Each schema gets one number, which all of them give; the GUID, and Glue's name of it, is the UUID of that number.
"""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import unquote, urlsplit
from uuid import UUID

from tests.registry_server import RegistryServer

_FIELDS = ("schema", "schemaType", "references")


def _schema_of(text: str) -> dict[str, str]:
    """Return a schema as Confluent's registry has it. Its type is that of its text: AWS Glue's client does not say it."""
    kind = "PROTOBUF" if not text.startswith("{") else "JSON" if '"properties"' in text else None
    return {"schema": text, **({"schemaType": kind} if kind else {})}


class Registries(BaseHTTPRequestHandler):
    """`server.answers` has the schemas, by their paths in Confluent's registry. A subject has a version for each number."""

    server: RegistryServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = urlsplit(self.path).path.removeprefix("/apis/ccompat/v7")
        own = path.rpartition("/")[2]
        if path.startswith("/schemas/guids/"):
            self._answer(self._schema(UUID(own).int))
        elif path.startswith(("/schemas/ids/", "/apis/registry/v2/ids/globalIds/")):
            found = self._schema(int(path.removesuffix("/references").rpartition("/")[2]))
            if path.startswith("/schemas"):
                self._answer(found)
            else:
                self._answer([] if own == "references" else found.get("schema"))
        elif path.startswith("/subjects/") and own.isdecimal():
            self._answer({**self._schema(int(own)), "subject": unquote(path.split("/")[2]), "version": int(own)})
        else:
            self._answer(None)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"] or 0)).decode()
        path, target = urlsplit(self.path).path, self.headers["X-Amz-Target"]
        if path.startswith("/apis/registry/v2/groups/"):
            number = self._number(_schema_of(body))
            kind = self.headers["X-Registry-ArtifactType"]
            meta = {"id": self.headers["X-Registry-ArtifactId"], "version": "1", "type": kind, "state": "ENABLED"}
            self._answer({**meta, "globalId": number, "contentId": number, "createdOn": "2026-01-01T00:00:00+0000"})
        elif path.startswith("/subjects/"):
            fields = json.loads(body)
            number = self._number({name: fields[name] for name in _FIELDS if fields.get(name)})
            self._answer({**self._schema(number), "version": number, "subject": unquote(path.split("/")[2])})
        elif target == "AWSGlue.GetSchemaByDefinition":
            self._answer(self._glue(self._number(_schema_of(json.loads(body)["SchemaDefinition"]))))
        elif target == "AWSGlue.GetSchemaVersion":
            self._answer(self._glue(UUID(json.loads(body)["SchemaVersionId"]).int))
        else:
            self._answer(None)

    def _schema(self, number: int) -> dict[str, Any]:
        found = self.server.answers.get(f"/schemas/ids/{number}")
        return {**found, "id": number, "guid": str(UUID(int=number))} if found else {}

    def _number(self, schema: dict[str, Any]) -> int:
        answers = self.server.answers
        known = {json.dumps(found): path for path, found in answers.items()}
        path = known.get(json.dumps(schema)) or f"/schemas/ids/{len(answers) + 1}"
        answers[path] = schema
        return int(path.rpartition("/")[2])

    def _glue(self, number: int) -> dict[str, Any]:
        schema = self.server.answers[f"/schemas/ids/{number}"]
        arn = "arn:aws:glue:eu-central-1:123456789012:schema/default-registry/customers"
        version = {
            "SchemaVersionId": str(UUID(int=number)),
            "SchemaArn": arn,
            "VersionNumber": 1,
            "Status": "AVAILABLE",
        }
        return {**version, "SchemaDefinition": schema["schema"], "DataFormat": schema.get("schemaType", "AVRO")}

    def _answer(self, found: Any) -> None:
        self.server.asked.append((self.path, self.headers["Authorization"]))
        missing = found is None or found == {}
        answer = {"error_code": 40403, "message": "not found"} if missing else found
        data = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
        self.send_response(404 if missing else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass
