"""A schema registry in this process, with some of the answers of Confluent's."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class RegistryServer(ThreadingHTTPServer):
    """Has schemas by id. `asked`: the paths of the requests, and their `Authorization`."""

    def __init__(self, schemas: Mapping[int, Any], handler: type[BaseHTTPRequestHandler] | None = None) -> None:
        super().__init__(("127.0.0.1", 0), handler or _Handler)
        self.answers = {f"/schemas/ids/{number}": {"schema": json.dumps(one)} for number, one in schemas.items()}
        self.asked: list[tuple[str, str | None]] = []

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: RegistryServer

    def do_GET(self) -> None:
        self.server.asked.append((self.path, self.headers["Authorization"]))
        found = self.server.answers.get(self.path)
        self.send_response(404 if found is None else 200)
        self.end_headers()
        self.wfile.write(json.dumps(found or {"error_code": 40403, "message": "Schema not found"}).encode())

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def schema_registry(
    schemas: Mapping[int, Any], handler: type[BaseHTTPRequestHandler] | None = None
) -> Iterator[RegistryServer]:
    """Run a registry for the time of a test. `handler`: what answers instead."""
    with RegistryServer(schemas, handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
