"""The routes of operations, of `Routes` itself, and of endpoint modules, which are imported with the first request to them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from diamant.broker.dispatch.operation_table import OPERATIONS
from diamant.broker.http.serving.route import Route, matched, route_of
from diamant.broker.operation_errors import as_operation_error

ENDPOINTS = {
    "/": "diamant.broker.http.page.views.overview",
    "/faults": "diamant.broker.http.page.views.faults",
    "/forget": "diamant.broker.http.page.views.forget",
    "/groups": "diamant.broker.http.page.views.groups",
    "/healthz": "diamant.broker.http.serving.health",
    "/history": "diamant.broker.http.page.views.history",
    "/live/faults": "diamant.broker.http.page.views.faults",
    "/live/groups": "diamant.broker.http.page.views.groups",
    "/live/overview": "diamant.broker.http.page.views.overview",
    "/live/topics": "diamant.broker.http.page.views.topics",
    "/login": "diamant.broker.http.page.views.login",
    "/people": "diamant.broker.http.page.views.people",
    "/readyz": "diamant.broker.http.serving.health",
    "/static": "diamant.broker.http.page.views.static_files",
    "/topics": "diamant.broker.http.page.views.topics",
    "/v1/certificates": "diamant.broker.http.serving.certificate_files",
}
"""Endpoint modules by path prefix. The longest prefix of whole steps applies; modules that are not installed are skipped."""


class RouteTable:
    """The routes imported so far."""

    def __init__(self, rows: Sequence[Route]) -> None:
        self._rows = [*rows]
        self._modules: dict[str, ModuleType] = {}
        self._operations: dict[str, Route] = {}

    def paths(self) -> set[str]:
        """Return the known paths, without importing any module."""
        present = (path for path, name in ENDPOINTS.items() if find_spec(name) is not None)
        return {row.path for row in self._rows} | {row.path for row in OPERATIONS.values()} | {*present}

    def _module_of(self, path: str) -> str | None:
        """Return the endpoint module for a path; None if there is none."""
        steps = path.split("/")
        prefixes = ("/".join(steps[:count]) for count in range(len(steps), 1, -1))
        return next((ENDPOINTS[prefix] for prefix in prefixes if prefix in ENDPOINTS), None)

    async def load_all(self) -> list[Route]:
        """Import all endpoint modules and return all routes."""
        for name in ENDPOINTS.values():
            await self._load(name)
        for name in OPERATIONS:
            await self._load_operation(name)
        return list(self._rows)

    async def _load(self, name: str) -> None:
        if name in self._modules or find_spec(name) is None:
            return
        module = await asyncio.to_thread(import_module, name)
        if name not in self._modules:
            self._modules[name] = module
            self._rows += module.ROUTES

    async def _load_operation(self, name: str) -> None:
        if name in self._operations:
            return
        route = await asyncio.to_thread(route_of, OPERATIONS[name])
        if self._operations.setdefault(name, route) is route:
            self._rows.append(route)

    async def find(self, path: str, steps: list[str]) -> dict[str, tuple[Route, dict[str, str]]]:
        """Return the routes at a path, by method. Literal steps take precedence over named steps."""
        with as_operation_error():
            for operation in OPERATIONS.values():
                if matched(operation.path, steps) is not None:
                    await self._load_operation(operation.name)
            name = self._module_of(path)
            if name is not None:
                await self._load(name)
        found: dict[str, tuple[Route, dict[str, str]]] = {}
        for row in self._rows:
            names = matched(row.path, steps)
            if names is not None and (row.method not in found or len(names) < len(found[row.method][1])):
                found[row.method] = (row, names)
        return found
