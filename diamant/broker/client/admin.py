"""A client for a Diamant broker's operations beyond Kafka: compact and wait, explain, erase, verify, move the clock.

    admin = diamant.Admin("127.0.0.1:9092")
    admin.compact("users")
    print(admin.explain("users", key="customer-42"))
    admin.clock.advance("8d")

`Admin` sends JSON over HTTP. It gets the HTTP address by querying the Kafka listener for the broker's read-only configuration
`diamant.http.address`. The broker runs long calls as jobs, for which `Admin` waits. It is synchronous and needs no event loop; an
object may be used from several threads. Responses are plain dicts, described in docs/reference/http.md.

The module imports only small modules of Diamant, so that other programs can import it cheaply.
"""

from __future__ import annotations

import base64
import http.client
import json
import socket
import struct
import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote, urlencode, urlsplit

from diamant.broker.client.admin_methods import RemoteBrokersOperations, RemoteOperations, RemotePersonOperations
from diamant.broker.client.bootstrap import DEFAULT_BOOTSTRAP, SYSTEM_CA
from diamant.broker.operation_errors import BadArgument, code_of_kafka_error
from diamant.broker.record_json import key_fields, parse_key
from diamant.duration import Duration, parse_duration_ms, seconds_of
from diamant.json_types import Fields, JsonObject, OnProgress
from diamant.protocol.errors import ErrorCode, ProtocolError
from diamant.protocol.primitives import encode_string, read_array_length, read_string
from diamant.storage.input_file import read_input

HTTP_ADDRESS_CONFIG = "diamant.http.address"
CONNECT_TIMEOUT_S = 10.0
MAX_REQUEST_S = 30.0
JOB_WAIT_MS = 5_000
JOB_PROGRESS_MS = 500
"""How long one request for the state of a job may wait: `JOB_PROGRESS_MS` with a progress listener, otherwise `JOB_WAIT_MS`."""

MAX_TOKEN_FILE_BYTES = 64 * 1024
MAX_FRAME_BYTES = 16 * 1024 * 1024
_METADATA, _METADATA_VERSION = 3, 1
_DESCRIBE_CONFIGS, _DESCRIBE_CONFIGS_VERSION = 32, 1
_BROKER_RESOURCE = 4
_ASKING: JsonObject = {
    "stage": "asking the broker",
    "done": 0,
    "total": None,
    "unit": "",
    "rate_per_s": None,
    "left_s": None,
    "job": None,
    "undertaking": None,
}

if TYPE_CHECKING:
    import ssl

    from diamant.broker.client.kafka_client import KafkaClient
    from diamant.broker.client.login import Login


class AdminError(Exception):
    """A refused or failed call. `status` is the HTTP status (0: no response), `code` an error code for programs."""

    def __init__(self, message: str, *, status: int = 0, code: str = "no-answer") -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class NotDiamant(AdminError):
    """The broker is not a Diamant broker, or this user may not read the configuration that shows it."""


ON_ANY_KAFKA = {
    "POST /v1/compact": "clusters.for_admin:compact",
    "POST /v1/erase": "clusters.for_admin:erase",
    "POST /v1/explain": "inspection.for_admin:explain",
}
"""The operations that also work without Diamant's HTTP port: the function for each route, as module:name in diamant.broker."""


class Admin(RemoteOperations):
    """A client of one broker. `bootstrap_server` is the address of its Kafka listener, a comma-separated list of addresses to try
    in order, or the URL of its HTTP port.
    """

    def __init__(
        self,
        bootstrap_server: str = DEFAULT_BOOTSTRAP,
        *,
        token: str | None = None,
        token_file: str | None = None,
        timeout: Duration = 60.0,
        http_url: str | None = None,
        login: Login | None = None,
        ca: str | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """The constructor does not connect. `token`, or the content of `token_file`, is sent to brokers that require a token.
        `timeout` bounds each call, including the wait for its job. `http_url` (`http://host:port`) makes the query for the HTTP
        address unnecessary. `login` is for Kafka listeners with SASL; `ca` (a PEM file, or `system`) or the SSL context `tls` is
        for Kafka listeners and HTTP ports with TLS.
        """
        if token_file is not None:
            token = _token_in(token_file)
        if http_url is None and bootstrap_server.startswith(("http://", "https://")):
            http_url = _url_of(bootstrap_server)
        self.bootstrap_server = bootstrap_server
        self.timeout_s = seconds_of(timeout)
        self._token = token
        self._http_url = http_url
        self._login = login
        self._tls = tls if ca is None else _trusting(ca)
        self._has_answered = False
        self.clock = AdminClock(self)
        self.brokers = RemoteBrokersOperations(self)
        self.person = RemotePersonOperations(self)

    @property
    def http_url(self) -> str:
        """The URL of the broker's HTTP port, `http://host:port`, fetched once. Raises AdminError."""
        if self._http_url is None:
            self._http_url = _find_http_url(
                self.bootstrap_server, min(CONNECT_TIMEOUT_S, self.timeout_s), self._login, self._tls
            )
        return self._http_url

    @property
    def is_diamant(self) -> bool:
        """True for Diamant, False for any other Kafka broker. Raises AdminError if there is no answer, or no HTTP port."""
        try:
            return bool(self.http_url)
        except NotDiamant:
            return False

    def kafka_client(self) -> KafkaClient:
        """Return a client of the cluster, which the caller must close. Each of its requests takes at most `MAX_REQUEST_S`."""
        from diamant.broker.client.kafka_client import KafkaClient

        timeout_s = min(MAX_REQUEST_S, self.timeout_s)
        return KafkaClient(self.bootstrap_server, timeout_s=timeout_s, login=self._login, tls=self._tls)

    # -- any call --------------------------------------------------------------------------------------------------------

    def call(
        self,
        method: Literal["GET", "POST", "PUT", "DELETE"],
        path: str,
        fields: Fields | None = None,
        *,
        query: Mapping[str, Any] | None = None,
        timeout: Duration | None = None,
        on_progress: OnProgress | None = None,
    ) -> JsonObject:
        """Send a request with the JSON object `fields` as its body. Returns the response; if it is a job, the job's final result.

        `on_progress` is called periodically with a dict of the job's progress: `stage`, `done`, `total`, `unit`, `rate_per_s`,
        `left_s`, and the IDs of the `job` and of its `undertaking` (an erasure or redaction that it has started), which are None
        until the broker has returned them.

        Raises AdminError. Its code is `timed-out` after `timeout` (default: the object's); the job then continues, and the
        message has its path if it is known. The code is `went-away` if the connection broke before the response, so that the
        request may or may not have been carried out.
        """
        deadline_s = time.monotonic() + (self.timeout_s if timeout is None else seconds_of(timeout))
        if on_progress is not None:
            on_progress({**_ASKING})
            # Have the broker return the job immediately, so that a caller who stops waiting knows its ID.
            query = {"wait_ms": 0, **(query or {})}
        status, answer = self._exchange(method, path, fields, query, deadline_s)
        return self._awaited(answer, deadline_s, on_progress) if status == 202 else answer

    def perform(self, route: str, given: Fields) -> JsonObject:
        """Call a route with a method's arguments, except those that are None. Returns and raises as `call` does.

        The operations in `ON_ANY_KAFKA` also work on Kafka clusters other than Diamant.
        """
        if route in ON_ANY_KAFKA and not self.is_diamant:
            module, _, name = ON_ANY_KAFKA[route].partition(":")
            elsewhere = getattr(import_module(f"diamant.broker.{module}"), name)
            found: JsonObject = elsewhere(self, **{name: value for name, value in given.items() if name != "self"})
            return found
        method, path, fields = _request(route, given)
        body, query = (fields, None) if method == "POST" else (None, fields)
        timeout, on_progress = given["timeout"], given.get("on_progress")
        answer = self.call(method, path, body, query=query, timeout=timeout, on_progress=on_progress)  # type: ignore[arg-type]
        if "key" in fields and answer.get("key", "") is None:  # job results omit the key
            answer["key"] = key_fields(parse_key(fields["key"]))
        return answer

    def stream(self, route: str, given: Fields) -> Generator[JsonObject, None, None]:
        """Call a route with a method's arguments, except those that are None, and yield the records of its response lazily.

        `timeout` bounds each wait for data, not the whole response. Raises AdminError, possibly after some records; a search also
        raises it if more records match than its limit allows, or if part of the topic could not be read.
        """
        method, path, fields = _request(route, given)
        left_s = self.timeout_s if given["timeout"] is None else seconds_of(given["timeout"])
        with self._connected(method, path, left_s) as connection:
            connection.request(method, path, body=json.dumps(fields).encode(), headers=self._headers())
            with connection.getresponse() as response:
                if response.status != 200:
                    _answer(method, path, response, response.read())
                yield from _records_found(map(json.loads, _lines(response)))

    def _awaited(self, job: JsonObject, deadline_s: float, on_progress: OnProgress | None) -> JsonObject:
        """Wait for a job and return its result."""
        while True:
            if on_progress is not None:
                on_progress({**job["progress"], "job": job["id"], "undertaking": job["undertaking"]})
            if job["state"] == "failed":
                error = job["error"]
                raise AdminError(error["error"], status=error["status"], code=error["code"])
            if job["state"] == "done":
                if not job["is_result_kept"]:
                    raise AdminError(
                        f"{job['verb']} is done, but its result is no longer kept", status=410, code="gone"
                    )
                result: JsonObject = job["result"]
                return result
            left_ms = int((deadline_s - time.monotonic()) * 1000)
            if left_ms <= 0:
                raise AdminError(
                    f"{job['verb']} is still in progress: wait longer, or follow it at {job['href']}",
                    status=504,
                    code="timed-out",
                )
            wait_ms = min(JOB_WAIT_MS if on_progress is None else JOB_PROGRESS_MS, left_ms)
            _, job = self._exchange("GET", job["href"], None, {"wait_ms": wait_ms}, deadline_s)

    def _exchange(
        self, method: str, path: str, fields: Fields | None, query: Mapping[str, Any] | None, deadline_s: float
    ) -> tuple[int, JsonObject]:
        # This timeout is longer than the broker's wait for the job, to leave time for the round trip.
        left_s = max(deadline_s - time.monotonic(), 0.1) + 1.0
        target = path if not query else f"{path}?{urlencode(_query_texts(query), doseq=True)}"
        body = None if method == "GET" else json.dumps(fields or {}).encode()
        with self._connected(method, path, left_s) as connection:
            connection.request(method, target, body=body, headers=self._headers())
            response = connection.getresponse()
            raw = response.read()
        return response.status, _answer(method, path, response, raw)

    def _headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "Connection": "close"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        return headers

    @contextmanager
    def _connected(self, method: str, path: str, left_s: float) -> Iterator[http.client.HTTPConnection]:
        """Yield an open connection to the HTTP port. Turns failures of the connection into AdminErrors."""
        connection = _connection(self.http_url, left_s, self._tls)
        try:
            connection.connect()
            self._has_answered = True
            yield connection
        except TimeoutError:
            raise AdminError(
                f"{method} {path}: no answer from {self.http_url} within {left_s:.1f} s", status=504, code="timed-out"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            raise _lost(method, path, self.http_url, error, has_answered=self._has_answered) from None
        finally:
            connection.close()


class AdminClock:
    """The clock of a broker started with `--clock manual`. Other brokers refuse all calls except `get`."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin

    def get(self) -> JsonObject:
        """Return the state of the clock: `kind`, `now_ms`, `real_ms`, `is_frozen`."""
        return self._admin.call("GET", "/v1/clock")

    def advance(
        self,
        by: str | int,
        *,
        sessions: bool = False,
        timeout: Duration | None = None,
        on_progress: OnProgress | None = None,
    ) -> JsonObject:
        """Move the clock forward by ms or e.g. `1h30m`; return a report once everything that was due by then is done."""
        fields = {"by_ms": parse_duration_ms(by), "sessions": sessions}
        return self._admin.call("POST", "/v1/clock/advance", fields, timeout=timeout, on_progress=on_progress)

    def set(
        self,
        to_ms: int,
        *,
        sessions: bool = False,
        timeout: Duration | None = None,
        on_progress: OnProgress | None = None,
    ) -> JsonObject:
        """Move the clock forward to a time in milliseconds since the epoch. Otherwise like `advance`."""
        fields = {"to_ms": to_ms, "sessions": sessions}
        return self._admin.call("POST", "/v1/clock/set", fields, timeout=timeout, on_progress=on_progress)

    def freeze(self) -> JsonObject:
        """Stop the clock, so that it moves only on request. Returns its state, as `get` does."""
        return self._admin.call("POST", "/v1/clock/freeze")

    def resume(self) -> JsonObject:
        """Let the clock run again, at the speed of real time. Returns its state, as `get` does."""
        return self._admin.call("POST", "/v1/clock/resume")


def _token_in(file: str) -> str:
    try:
        return read_input(file, MAX_TOKEN_FILE_BYTES).decode().strip()
    except UnicodeDecodeError:
        raise AdminError(f"{file}: expected a token in UTF-8", status=400, code="bad-argument") from None


def _lost(method: str, path: str, url: str, error: Exception, *, has_answered: bool) -> AdminError:
    reason = str(error) or type(error).__name__
    if has_answered:
        return AdminError(f"{method} {path}: the broker at {url} went away: {reason}", code="went-away")
    return AdminError(
        f"{method} {path}: {url} does not answer: {reason}. A broker that answers HTTP on 127.0.0.1 only "
        "cannot be reached from elsewhere (diamant.http.listen)"
    )


def _request(route: str, given: Fields) -> tuple[str, str, JsonObject]:
    """Return the HTTP method, the path and the fields with which to call a route."""
    method, _, path = route.partition(" ")
    fields: JsonObject = {}
    for name, value in given.items():
        if value is None or name in ("self", "timeout", "on_progress"):
            continue
        if f"{{{name}}}" in path:
            path = path.replace(f"{{{name}}}", path_step(str(value)))
        else:
            fields[name] = _to_json(value)
    return method, path, fields


def _to_json(value: object) -> object:
    if isinstance(value, bytes | bytearray | memoryview):
        return {"base64": base64.b64encode(value).decode("ascii")}
    return list(value) if isinstance(value, tuple | set | frozenset) else value


def _query_texts(query: Mapping[str, Any]) -> JsonObject:
    return {name: ("true" if value else "false") if isinstance(value, bool) else value for name, value in query.items()}


def path_step(name: str) -> str:
    """Quote a name for use as one segment of a path."""
    return quote(name, safe="")


def _records_found(lines: Iterable[JsonObject]) -> Generator[JsonObject, None, None]:
    """Yield the lines of a response that have an `offset` or a `kind`. Raises AdminError if the response is incomplete."""
    for line in lines:
        if "error" in line:
            raise AdminError(line["error"], code=line["code"])
        if "offset" in line or "kind" in line:
            yield line
        elif line.get("is_cut"):
            text = f"more than {line['found']} records match: set a higher limit, or narrow the search"
            raise AdminError(text, code="too-many")
        elif line.get("problems"):
            raise AdminError(f"not everything could be read: {'; '.join(line['problems'])}", code="failed")


# -- finding the address ---------------------------------------------------------------------------------------------------


def _connection(http_url: str, timeout_s: float, tls: ssl.SSLContext | None) -> http.client.HTTPConnection:
    """Return an unopened connection to a URL. If `tls` is None, https trusts the system's CAs, or those in SSL_CERT_FILE."""
    url = urlsplit(http_url)
    assert url.hostname is not None
    if url.scheme == "https":
        return http.client.HTTPSConnection(url.hostname, url.port, timeout=timeout_s, context=tls)
    return http.client.HTTPConnection(url.hostname, url.port, timeout=timeout_s)


def _url_of(text: str) -> str:
    """Strip the path from the URL of an HTTP port. Raises AdminError if the URL is not valid."""
    url = urlsplit(text)
    _split_address(url.netloc)
    return f"{url.scheme}://{url.netloc}"


def _trusting(ca_file: str) -> ssl.SSLContext:
    from diamant.broker.client.client_config import trusting

    try:
        return trusting(None if ca_file == SYSTEM_CA else ca_file)
    except BadArgument as error:
        raise AdminError(str(error), status=400, code="bad-argument") from None


def _find_http_url(bootstrap: str, timeout_s: float, login: Login | None, tls: ssl.SSLContext | None) -> str:
    """Query the listed brokers, in order until one answers, for the URL of the HTTP port. Raises AdminError."""
    failures = []
    for address in bootstrap.split(","):
        host, port = _split_address(address)
        try:
            if login is not None or tls is not None:
                text = _http_address_for(login, tls, host, port, timeout_s)
            else:
                with socket.create_connection((host, port), timeout_s) as connection:
                    text = _http_address(connection)
        except NotDiamant as error:
            raise NotDiamant(f"{address.strip()}: {error}", code="not-possible") from None
        except (OSError, ValueError, IndexError, struct.error, ProtocolError) as error:
            told = str(error) or type(error).__name__
            failures.append(told if told.startswith(address.strip()) else f"{address.strip()}: {told}")
            continue
        if not text:
            raise AdminError(
                f"the broker at {address.strip()} does not answer HTTP: start it with diamant.http.listen, as in "
                "--set diamant.http.listen=127.0.0.1:9644",
                code="no-http",
            )
        scheme = "https" if text.startswith("https://") else "http"
        http_host, http_port = _split_address(text.removeprefix("https://"))
        http_host = http_host or host
        return f"{scheme}://[{http_host}]:{http_port}" if ":" in http_host else f"{scheme}://{http_host}:{http_port}"
    raise AdminError(f"no broker answers: {'; '.join(failures)}")


def _http_address_for(
    login: Login | None, tls: ssl.SSLContext | None, host: str, port: int, timeout_s: float
) -> str | None:
    """Like `_http_address`, but through a listener with SASL or TLS. Raises OSError, or AdminError if the broker refuses."""
    from diamant.broker.client.kafka_connection import ConnectionFailed, KafkaConnection

    try:
        with KafkaConnection(host, port, timeout_s=timeout_s, login=login, tls=tls) as connection:
            node_id = connection.ask(_METADATA, {"topics": []})["brokers"][0]["node_id"]
            names = [HTTP_ADDRESS_CONFIG]
            resource = {"resource_type": _BROKER_RESOURCE, "resource_name": str(node_id), "configuration_keys": names}
            result = connection.ask(_DESCRIBE_CONFIGS, {"resources": [resource]})["results"][0]
    except ConnectionFailed as error:
        if error.code in ("unauthorized", "bad-argument"):
            raise AdminError(str(error), code=error.code) from None
        raise OSError(str(error)) from None
    if result["error_code"] == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
        raise NotDiamant(_OR_NOT_ALLOWED)
    if result["error_code"]:
        code = code_of_kafka_error(result["error_code"])
        raise AdminError(f"{host}:{port}: {result['error_message'] or code}", code=code)
    if not result["configs"]:
        raise NotDiamant(_ONLY_DIAMANT)
    value: str | None = result["configs"][0]["value"]
    return value


_NO_ADDRESS = f"a Kafka broker answers, but it reports no {HTTP_ADDRESS_CONFIG}, so it is not a Diamant broker"
_ONLY_DIAMANT = f"{_NO_ADDRESS}: this works only with Diamant"
_OR_NOT_ALLOWED = f"{_NO_ADDRESS}, or this user lacks DESCRIBE_CONFIGS on the cluster: this works only with Diamant"


def _split_address(address: str) -> tuple[str, int]:
    host, colon, port = address.strip().rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise AdminError(f"{address.strip()!r} is not an address: expected host:port", status=400, code="bad-argument")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _http_address(connection: socket.socket) -> str | None:
    """Return the broker's `diamant.http.address`. If its host is empty, the HTTP port is on the host of this connection."""
    body = _ask(connection, _METADATA, _METADATA_VERSION, struct.pack(">i", 0))
    end = len(body)
    brokers, _ = read_array_length(body, 0, end)
    if brokers < 1:
        raise ValueError("the response to Metadata lists no brokers")
    (node_id,) = struct.unpack_from(">i", body, 4)
    names = struct.pack(">i", 1) + encode_string(HTTP_ADDRESS_CONFIG)
    resource = struct.pack(">b", _BROKER_RESOURCE) + encode_string(str(node_id)) + names
    body = _ask(connection, _DESCRIBE_CONFIGS, _DESCRIBE_CONFIGS_VERSION, struct.pack(">i", 1) + resource + b"\0")
    end = len(body)
    results, position = read_array_length(body, 4, end)
    if results != 1:
        raise ValueError(f"DescribeConfigs returned {results} resources, expected 1")
    (error_code,) = struct.unpack_from(">h", body, position)
    message, position = read_string(body, position + 2, end)
    if error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
        raise NotDiamant(_OR_NOT_ALLOWED)
    if error_code:
        raise ValueError(f"DescribeConfigs returned error {error_code}: {message}")
    _, position = read_string(body, position + 1, end)
    configs, position = read_array_length(body, position, end)
    if configs < 1:
        raise NotDiamant(_ONLY_DIAMANT)
    _, position = read_string(body, position, end)
    value, _ = read_string(body, position, end)
    return value


def _ask(connection: socket.socket, api_key: int, version: int, body: bytes) -> memoryview:
    """Send one request and return the response's body. Raises OSError, ValueError."""
    request = struct.pack(">hhi", api_key, version, 1) + encode_string("diamant-admin") + body
    connection.sendall(struct.pack(">i", len(request)) + request)
    head = _receive(connection, 4)
    if head == b"HTTP":
        raise ValueError("it answers HTTP: give the address of the Kafka listener, or http://host:port")
    (size,) = struct.unpack(">i", head)
    if not 4 <= size <= MAX_FRAME_BYTES:
        raise ValueError(f"a response of {size} bytes: it does not speak Kafka's protocol, or requires TLS")
    return memoryview(_receive(connection, size))[4:]


def _receive(connection: socket.socket, count: int) -> bytes:
    received = bytearray()
    while len(received) < count:
        part = connection.recv(count - len(received))
        if not part:
            raise ConnectionError("the connection was closed without a response: it may require a login, or TLS")
        received += part
    return bytes(received)


def _answer(method: str, path: str, response: http.client.HTTPResponse, raw: bytes) -> JsonObject:
    """Return the JSON object in a response. Raises AdminError if the broker refused the request, or sent something else."""
    try:
        answer = json.loads(raw)
    except ValueError:
        raise AdminError(
            f"{method} {path}: the response ({response.status}) is not JSON", status=response.status
        ) from None
    if response.status >= 400:
        message = answer.get("error", response.reason) if isinstance(answer, dict) else response.reason
        code = answer.get("code", "failed") if isinstance(answer, dict) else "failed"
        raise AdminError(str(message), status=response.status, code=str(code))
    if not isinstance(answer, dict):
        raise AdminError(f"{method} {path}: the response is not a JSON object", status=response.status)
    return answer


def _lines(response: http.client.HTTPResponse) -> Iterator[bytes]:
    """Yield the lines of a response. Unlike readline(), raises IncompleteRead if the response is truncated."""
    rest = b""
    while data := response.read1(64 * 1024):
        *lines, rest = (rest + data).split(b"\n")
        yield from lines
    if rest:
        raise http.client.IncompleteRead(rest)
