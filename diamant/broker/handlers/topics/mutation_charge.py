"""The quota charge of requests that create, grow or delete topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diamant.broker.network.api import RequestContext
from diamant.broker.node.lazy import Lazy
from diamant.broker.security.quotas.mutation_quota import MutationCharge

if TYPE_CHECKING:
    from diamant.broker.security.quotas.quotas import Quotas


def charge_of(quotas: Lazy[Quotas], context: RequestContext, *, is_strict: bool) -> MutationCharge:
    """Return the charge of a request. `is_strict`: refuse changes beyond the quota instead of throttling the client."""
    quota = None if quotas.made is None else quotas.made.mutations
    return MutationCharge(quota, context.connection.principal.name, context.client_id, is_strict=is_strict)
