"""The needs of every API, and of our own operations."""

from __future__ import annotations

from pathlib import Path

from diamant.broker.dispatch.api_table import TABLE
from diamant.broker.dispatch.operation_table import OPERATIONS
from diamant.protocol.errors import ErrorCode
from diamant.protocol.wire.apis import API_NAMES
from release.reference.access import access_page


def test_every_row_needs_something_or_says_why_not() -> None:
    """An API that is open to all has the reason in the table."""
    open_rows = {API_NAMES[key] for key, row in TABLE.items() if not row.permissions and not row.is_open}
    assert open_rows == set()


def test_the_reference_page_is_of_these_tables() -> None:
    """docs/reference/access.md is the output of `make docs`, and names every served API."""
    page = (Path(__file__).parents[4] / "docs" / "reference" / "access.md").read_text(encoding="utf-8")
    assert page == access_page()
    assert all(f"| {API_NAMES[key]} |" in page for key in TABLE)


def test_each_permission_of_an_operation_has_an_error_code() -> None:
    """The denial of each need of an operation has an error code."""
    assert all(
        permission.denial
        for row in OPERATIONS.values()
        for permission in (*row.permissions, *row.permissions_with.values())
    )


def test_denials_have_codes_of_their_own() -> None:
    """The error code of each need names the resource type."""
    assert {permission.denial for row in TABLE.values() for permission in row.permissions} <= {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
