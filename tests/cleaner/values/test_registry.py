"""A schema registry with hostile answers: a search gets the schema or none, in bounded time."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from diamant.cleaner.values import registry as schema_registry
from diamant.cleaner.values.framing import GLUE, GUID, ID, Frame
from diamant.cleaner.values.nodes import Undecodable
from diamant.cleaner.values.registry import RegistryAddress, SchemaRegistry, registry_address
from diamant.cleaner.values.schemas import NoSchema, Schemas, SchemaText
from tests.broker.security.tls.certificates import authority, of_broker, written

A_GUID = UUID(int=5)
ANSWERS: dict[str, Any] = {
    "/base/schemas/ids/1": {"schema": '"string"'},
    f"/base/schemas/guids/{A_GUID}": {"schema": '"int"', "guid": str(A_GUID), "id": 2},
    "/base/schemas/ids/2": {
        "schema": "message A {}",
        "schemaType": "PROTOBUF",
        "references": [{"name": "b.proto", "subject": "b/c", "version": 3}],
    },
    "/base/subjects/b%2Fc/versions/3?deleted=true": {
        "schema": "message B {}",
        "schemaType": "PROTOBUF",
        "id": 9,
        "version": 3,
    },
    "/base/schemas/ids/13": {"schema": '"C"', "references": [{"name": "C", "subject": "c", "version": 1}]},
    "/base/schemas/ids/3": {"schema": 1},
    "/base/schemas/ids/4": [],
    "/base/schemas/ids/5": {"schema": '"long"', "id": 6},
    "/base/schemas/ids/6": b"{",
    "/base/schemas/ids/7": b"[" * 100_000,
    "/base/schemas/ids/8": b" " * (schema_registry.MAX_ANSWER_BYTES + 1),
}


class Handler(BaseHTTPRequestHandler):
    """Answers from `ANSWERS`; 301 leads to a good answer, and 11 says nothing until the test ends."""

    paths: list[tuple[str, str | None]]
    is_over: threading.Event

    def do_GET(self) -> None:
        self.paths.append((self.path, self.headers["Authorization"]))
        if self.path.endswith("/10"):
            self.send_response(301)
            self.send_header("Location", "/base/schemas/ids/1")
            self.end_headers()
        elif self.path.endswith("/11"):
            self.is_over.wait(60)
        elif self.path.endswith(("/12", "/14")):
            self.send_error(500 if self.path.endswith("/12") else 401)
        elif self.path in ANSWERS:
            found = ANSWERS[self.path]
            self.send_response(200)
            self.end_headers()
            self.wfile.write(found if isinstance(found, bytes) else json.dumps(found).encode())
        else:
            self.send_error(404)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    Handler.paths, Handler.is_over = [], threading.Event()
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as found:
        thread = threading.Thread(target=found.serve_forever, args=(0.01,))
        thread.start()
        yield found
        Handler.is_over.set()
        found.shutdown()
        thread.join()


def registry(server: ThreadingHTTPServer, **options: Any) -> SchemaRegistry:
    return SchemaRegistry(RegistryAddress(f"http://127.0.0.1:{server.server_port}/base/", **options))


def find(source: SchemaRegistry, schema_id: int) -> SchemaText | None:
    return source.find((ID, schema_id), "orders", "value")


def refused(source: SchemaRegistry, schema_id: int) -> str:
    """Return the reason why there is no such schema."""
    with pytest.raises(NoSchema) as caught:
        find(source, schema_id)
    return str(caught.value)


def test_a_schema_comes_with_its_references(server: ThreadingHTTPServer) -> None:
    """Schemas are found by id and by GUID, not by AWS Glue's names; those that they refer to come along."""
    source = registry(server)
    assert find(source, 1) == SchemaText("AVRO", '"string"')
    assert find(source, 2) == SchemaText("PROTOBUF", "message A {}", {"b.proto": "message B {}"})
    assert source.find((GUID, A_GUID), "orders", "value") == SchemaText("AVRO", '"int"')
    assert source.find((GLUE, A_GUID), "orders", "value") is None


@pytest.mark.parametrize(
    ("options", "expected"),
    [({}, None), ({"user_info": "ada:secret"}, "Basic YWRhOnNlY3JldA=="), ({"token": "t"}, "Bearer t")],
)
def test_a_request_has_the_credentials(server: ThreadingHTTPServer, options: Any, expected: str | None) -> None:
    """The request has basic or bearer credentials, as configured."""
    find(registry(server, **options), 1)
    assert Handler.paths == [("/base/schemas/ids/1", expected)]


@pytest.mark.parametrize("schema_id", [3, 4, 5, 6, 7, 13, 99])
def test_a_wrong_answer_is_no_schema(server: ThreadingHTTPServer, schema_id: int) -> None:
    """An answer with other JSON or none, another id, or no such schema or reference is no schema; the next schema is still
    asked for.
    """
    source = registry(server)
    reason = refused(source, schema_id)
    assert "it has no /s" in reason if schema_id in (13, 99) else "not answered with this schema" in reason
    assert find(source, 1) is not None


@pytest.mark.parametrize(
    ("schema_id", "reason"),
    [(8, "more than 4194304 bytes"), (10, "status 301, a redirect, which is refused"), (12, "status 500"), (14, "401")],
)
def test_an_unusable_registry_counts_as_down(server: ThreadingHTTPServer, schema_id: int, reason: str) -> None:
    """After an endless answer, a redirect, a refused login or an error of the server it is not asked again."""
    source = registry(server)
    assert reason in refused(source, schema_id)
    assert "it is not asked again" in refused(source, 1)
    assert len(Handler.paths) == 1


def test_a_silent_registry_is_waited_for_once(server: ThreadingHTTPServer) -> None:
    """A silent registry is waited for once, for a bounded time; one that refuses connections is down at once."""
    source = SchemaRegistry(RegistryAddress(f"http://127.0.0.1:{server.server_port}/base"), timeout_s=0.1)
    refused(source, 11)
    refused(source, 1)
    assert "Connection refused" in refused(SchemaRegistry(RegistryAddress("http://127.0.0.1:1")), 1)


def test_a_search_tells_why_schemas_are_missing(server: ThreadingHTTPServer) -> None:
    """Other sources are asked, too; the problem has the id and the registry's answer, once for each schema."""
    schemas = Schemas([registry(server)])
    for _ in range(2):
        with pytest.raises(Undecodable, match="no source has the schema with id 99: the schema registry http"):
            schemas.decode(Frame((ID, 99), b"", 0), "orders", "value")
    assert len(schemas.problems) == len(Handler.paths) == 1


def test_tls_trusts_the_given_certificates_only(server: ThreadingHTTPServer, tmp_path: Path) -> None:
    """With the file of the CA the registry is read; with the system's certificates it counts as down."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(written(tmp_path, of_broker()))
    # In the thread of the connection, which closes it after a failed handshake.
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    ca = tmp_path / "ca.pem"
    ca.write_text(authority().certificate)
    url = f"https://127.0.0.1:{server.server_port}/base"
    assert find(SchemaRegistry(RegistryAddress(url, ca_file=str(ca))), 1) is not None
    assert "CERTIFICATE_VERIFY_FAILED" in refused(SchemaRegistry(RegistryAddress(url)), 1)


def test_secrets_come_from_files(tmp_path: Path) -> None:
    """A user has a file with the password, a token is in a file; both, an empty file or two lines are refused."""
    file, lines = tmp_path / "secret", tmp_path / "lines"
    file.write_text("s3cret\n")
    lines.write_text("a\nb\n")
    url = "https://registry:8081"
    assert registry_address(url, f"ada:{file}", None, None).user_info == "ada:s3cret"
    assert registry_address(url, None, str(file), None).token == "s3cret"
    for user, token in [("ada", None), (f"ada:{file}", str(file)), (None, str(lines)), (f"ada:{lines}", None)]:
        with pytest.raises(ValueError, match="expected"):
            registry_address(url, user, token, None)


@pytest.mark.parametrize("url", ["", "ftp://a", "http://", "registry:8081", "http://ada:secret@a", "http://a?b"])
def test_a_url_of_another_kind_is_refused(url: str) -> None:
    """The error names the expected form, and does not quote the URL."""
    with pytest.raises(ValueError, match="expected a URL"):
        RegistryAddress(url)
