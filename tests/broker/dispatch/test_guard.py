"""The guard's cache of what clients may do."""

from __future__ import annotations

from diamant.broker.dispatch.api_table import TABLE
from diamant.broker.dispatch.guard import Guard
from diamant.broker.network.api import ConnectionInfo, RequestContext
from diamant.broker.security.authorization.access import Access
from diamant.broker.security.authorization.authorizer import Authorizer
from diamant.broker.security.identity.principal import Principal
from diamant.protocol.wire import apis


def test_a_clients_connections_leave_nothing_behind() -> None:
    """Those of one principal at one host share its access, so that the cache does not grow with every connection that ends."""
    accesses: list[Access] = []

    def handle(context: RequestContext, _: object) -> bytes:
        accesses.append(context.access)
        return b""

    authorizer = Authorizer((), allows_by_default=True)
    guard = Guard(apis.FETCH, TABLE[apis.FETCH], authorizer, handle)
    alice, bob = Principal("User", "alice"), Principal("User", "bob")
    for port, principal in enumerate([alice, alice, bob]):
        connection = ConnectionInfo("PLAINTEXT", f"10.0.0.1:{port}", "10.0.0.1", "broker", 1, principal=principal)
        guard.hand_on(RequestContext(12, None, connection), None)
    assert accesses[0] is accesses[1] is not accesses[2]
    authorizer.add([])
    guard.hand_on(RequestContext(12, None, connection), None)
    assert accesses[3] is not accesses[2]
