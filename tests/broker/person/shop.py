"""A small shop for the tests: topics, a data map, and two customers."""

from __future__ import annotations

import json
from typing import Any

from diamant.broker.broker import Broker

ADA, BOB = "customer-42", "customer-43"
MAP: dict[str, Any] = {
    "version": 1,
    "topics": {
        "customers": {"identity": {"customer_id": "key"}, "do": "erase-key"},
        "carts": {"identity": {"customer_id": "key"}, "do": "erase-key"},
        "orders": {"identity": {"customer_id": "value.customer"}, "do": "remove-record"},
    },
}


def order(customer: str, number: int) -> bytes:
    """Return the value of an order."""
    return json.dumps({"number": number, "customer": customer, "note": f"for {customer} only"}).encode()


async def fill(broker: Broker) -> None:
    """Make the topics, with records of both customers."""
    await broker.create_topic("customers", cleanup_policy="compact")
    await broker.create_topic("carts", cleanup_policy="compact")
    await broker.create_topic("orders")
    for customer in (ADA, BOB):
        await broker.produce("customers", f"all about {customer}".encode(), key=customer.encode())
        await broker.produce("carts", f"the cart of {customer}".encode(), key=customer.encode())
        for number in range(3):
            await broker.produce("orders", order(customer, number), key=str(number).encode())
