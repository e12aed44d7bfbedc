"""The metrics of authentication by listener, and of quotas."""

from __future__ import annotations

import ssl
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from diamant.broker.broker import Broker
from diamant.broker.metrics import prometheus
from diamant.broker.metrics.figures import MAX_COUNTS_SHOWN, take_figures, take_quotas
from diamant.broker.metrics.metric_table import METRICS, QUOTA_LABELS
from diamant.broker.security.identity.authentication_counts import AuthenticationCounts
from diamant.broker.security.quotas.quotas import Quotas
from diamant.broker.security.quotas.rate import RateWindows
from tests.broker.handlers.data.test_throttled_clients import produce, set_limit
from tests.broker.metrics.test_metrics import scrape, value
from tests.broker.security.quotas.stored import entity
from tests.broker.security.sasl.sasl_wire import ALICE, SaslClient
from tests.broker.wire import METADATA, WireClient
from tests.waiting import wait_until

LISTENERS = "SASL_PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0,SASL_SSL://127.0.0.1:0,PLAINTEXT://127.0.0.1:0"
WRONG = b"\0alice\0guess"


async def counted(broker: Broker) -> list[tuple[str, AuthenticationCounts]]:
    """Return the counts of each listener."""
    figures = await take_figures(broker.services)
    return [(listener, counts) for (listener, _), counts in figures.authentications]


async def try_sasl(address: str, *tokens: bytes, context: ssl.SSLContext | None = None) -> None:
    """Authenticate with several tokens in turn on one connection."""
    async with WireClient(address, context) as wire:
        client = SaslClient(wire)
        for token in tokens:
            await client.handshake()
            await client.authenticate(token)


async def test_attempts_are_counted_on_their_listener(tmp_path: Path) -> None:
    """Attempts count by SASL if it is on, else by TLS. A failed handshake counts for both, a successful one only without SASL."""
    async with Broker(
        listen=LISTENERS,
        data_dir=tmp_path,
        users={"alice": "secret"},
        tls=True,
        connection_failed_authentication_delay_ms=1,
    ) as broker:
        sasl, tls, both, plain = [listener.address.rpartition("://")[2] for listener in broker.node.addresses.kafka]
        assert broker.node.tls is not None
        assert broker.node.tls.authority is not None
        context = ssl.create_default_context(cadata=broker.node.tls.authority.certificate)
        await try_sasl(sasl, ALICE)
        await try_sasl(sasl, WRONG)
        of_tls = broker.node.tls.by_name["SSL"].counts
        async with WireClient(tls, context):
            await wait_until(lambda: of_tls.successful == 1)
        await try_sasl(both, ALICE, context=context)
        await try_sasl(both, WRONG, context=context)
        for address in (tls, both):
            async with WireClient(address) as wire:
                wire.send(METADATA, 1, {"topics": []})  # without TLS
                assert await wire.is_closed()
        async with WireClient(plain) as wire:
            await wire.create("t")
        expected = [
            ("SASL_PLAINTEXT", AuthenticationCounts(successful=1, failed=1)),
            ("SSL", AuthenticationCounts(successful=1, failed=1)),
            ("SASL_SSL", AuthenticationCounts(successful=1, failed=2)),
            ("PLAINTEXT", AuthenticationCounts()),
        ]
        assert await counted(broker) == expected
        text = prometheus.render(await prometheus.take(broker.services)).decode()
    name = "kafka_server_socket_server_metrics_failed_authentication_total"
    assert f'{name}{{listener="SASL_SSL",networkProcessor="0"}} 2.0' in text


async def test_sessions_that_are_renewed_or_end_are_counted(tmp_path: Path) -> None:
    """Sessions that are renewed, refused for a wrong password, or expired are counted. None of them counts as a failed
    authentication.
    """
    async with Broker(
        listen="SASL_PLAINTEXT://127.0.0.1:0",
        data_dir=tmp_path,
        users={"alice": "secret"},
        connections_max_reauth_ms=60_000,
        connection_failed_authentication_delay_ms=1,
        diamant_clock="manual",
    ) as broker:
        await broker.clock.freeze()
        await try_sasl(broker.bootstrap_servers, ALICE, ALICE)
        await try_sasl(broker.bootstrap_servers, ALICE, WRONG)
        async with WireClient(broker.bootstrap_servers) as wire:
            client = SaslClient(wire)
            await client.handshake()
            await client.authenticate(ALICE)
            await broker.clock.advance("61s")
            wire.send(METADATA, 1, {"topics": []})
            assert await wire.is_closed()
        expected = AuthenticationCounts(successful=3, successful_again=1, failed_again=1, expired=1)
        assert await counted(broker) == [("SASL_PLAINTEXT", expected)]


async def test_counts_are_shown_with_their_user_and_client_id(broker: Broker, wire: WireClient) -> None:
    """Rate and throttle time have labels as in Kafka's metrics; parts that a limit does not name are empty."""
    await wire.create("t")
    assert b"kafka_server_quota_" not in prometheus.render(await prometheus.take(broker.services))
    await set_limit(wire, "producer_byte_rate", 50_000)
    await produce(wire, 510_000)
    found = await scrape(broker)
    produced = {"resource": "Produce", "user": "", "clientId": "wire"}
    assert 50_000 < value(found, "kafka_server_quota_byte_rate", **produced) < 55_000
    assert 0 < value(found, "kafka_server_quota_throttle_time", **produced) < 500


def test_every_kind_has_its_metrics() -> None:
    """Their names are in the table, and the number of counts shown is bounded."""
    quotas = Quotas(RateWindows(), RateWindows(), lambda: 1.0)
    names = ("producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate")
    quotas.set_limits({entity("client_"): dict.fromkeys(names, 10.0)})
    for number in range(MAX_COUNTS_SHOWN + 1):
        quotas.produce.counts.of("u", f"c{number}", 1000.0 + number)
    for quota in (quotas.fetch, quotas.request, quotas.mutations):
        quota.counts.of("u", "app", 1000.0)
    figures: Any = SimpleNamespace(quotas=take_quotas(quotas))
    shown = {
        row.name: [labels for labels, _ in row.samples(figures)]
        for row in METRICS.values()
        if row.labels == QUOTA_LABELS and row.samples is not None
    }
    assert {name: {labels[0] for labels in found} for name, found in shown.items()} == {
        "kafka_server_quota_byte_rate": {"Produce", "Fetch"},
        "kafka_server_quota_request_time": {"Request"},
        "kafka_server_quota_tokens": {"ControllerMutation"},
        "kafka_server_quota_throttle_time": {"Produce", "Fetch", "Request", "ControllerMutation"},
    }
    clients = [client_id for kind, _, client_id in shown["kafka_server_quota_byte_rate"] if kind == "Produce"]
    assert len(clients) == MAX_COUNTS_SHOWN
    assert "c0" not in clients
    assert take_quotas(None) == ()
