"""The charge of a request that changes topics, for the handlers that create and delete them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diamant.broker.network.api import RequestContext
from diamant.broker.node.lazy import Lazy
from diamant.broker.security.quotas.mutation_quota import MutationCharge

if TYPE_CHECKING:
    from diamant.broker.security.quotas.quotas import Quotas


def charge_of(quotas: Lazy[Quotas], context: RequestContext, *, is_strict: bool) -> MutationCharge:
    """`is_strict`: what exceeds the quota is refused, rather than carried out and waited for."""
    quota = None if quotas.made is None else quotas.made.mutations
    return MutationCharge(quota, context.connection.principal.name, context.client_id, is_strict=is_strict)
