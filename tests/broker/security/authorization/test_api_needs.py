"""Every API that the broker serves has a row in the table of needs."""

from __future__ import annotations

from pathlib import Path

from diamant.broker.dispatch.table import TABLE
from diamant.broker.reference.access import access_page
from diamant.broker.security.authorization.api_needs import API_NEEDS
from diamant.broker.security.authorization.own_verbs import VERB_NEEDS
from diamant.protocol.wire.apis import API_NAMES


def test_every_api_of_the_dispatch_table_has_a_row() -> None:
    """An API without one could not be served: the guard has no row for it."""
    assert {API_NAMES[key] for key in TABLE.keys() - API_NEEDS.keys()} == set()


def test_every_row_needs_something_or_says_why_not() -> None:
    """What is open to all has its reason in the table."""
    open_rows = {API_NAMES[key] for key, row in API_NEEDS.items() if not row.needs and not row.is_open}
    assert open_rows == set()


def test_the_reference_page_is_of_these_tables() -> None:
    """docs/reference/access.md is what `make docs` writes, and names every API that is served."""
    page = (Path(__file__).parents[4] / "docs" / "reference" / "access.md").read_text(encoding="utf-8")
    assert page == access_page()
    assert all(f"| {API_NAMES[key]} |" in page for key in TABLE)


def test_what_own_verbs_need_has_a_code() -> None:
    """Each need of a verb can be denied by name."""
    assert all(need.denial for needs in VERB_NEEDS.values() for need in needs)
