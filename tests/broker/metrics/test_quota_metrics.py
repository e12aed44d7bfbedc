"""The metrics of quotas: one sample for each count, and none without quotas."""

from __future__ import annotations

from diamant.broker.broker import Broker
from diamant.broker.metrics import prometheus
from diamant.broker.metrics.quotas import MAX_COUNTS_SHOWN, take_quotas
from diamant.broker.metrics.table import METRICS, QUOTA_LABELS
from diamant.broker.security.quotas.quotas import Quotas
from diamant.broker.security.quotas.rate import RateWindows
from tests.broker.handlers.data.test_throttled_clients import produce, set_limit
from tests.broker.security.quotas.stored import entity
from tests.broker.wire import WireClient


async def test_counts_are_shown_with_their_user_and_client_id(broker: Broker, wire: WireClient) -> None:
    """Rate and average wait, by user and client id as in Kafka's metrics; what a limit does not name is empty."""
    await wire.create("t")
    assert b"kafka_server_quota_" not in prometheus.render(await prometheus.take(broker.services))
    await set_limit(wire, "producer_byte_rate", 50_000)
    await produce(wire, 510_000)
    figures = {f[:4]: f.value for f in (await prometheus.take(broker.services)).quotas}
    assert 50_000 < figures["kafka_server_quota_byte_rate", "Produce", "", "wire"] < 55_000
    assert 0 < figures["kafka_server_quota_throttle_time", "Produce", "", "wire"] < 500
    text = prometheus.render(await prometheus.take(broker.services)).decode()
    assert 'kafka_server_quota_byte_rate{clientId="wire",resource="Produce",user=""}' in text


def test_every_kind_has_its_metrics() -> None:
    """Their names are in the table, and no more counts are shown than the bound."""
    quotas = Quotas(RateWindows(), RateWindows(), lambda: 1.0)
    names = ("producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate")
    quotas.set_limits({entity("client_"): dict.fromkeys(names, 10.0)})
    for number in range(MAX_COUNTS_SHOWN + 1):
        quotas.produce.counts.of("u", f"c{number}", 1000.0 + number)
    for quota in (quotas.fetch, quotas.request, quotas.mutations):
        quota.counts.of("u", "app", 1000.0)
    figures = take_quotas(quotas)
    assert {figure.metric for figure in figures} == {name for name in METRICS if METRICS[name].labels == QUOTA_LABELS}
    shown = [figure.client_id for figure in figures if figure[:2] == ("kafka_server_quota_byte_rate", "Produce")]
    assert len(shown) == MAX_COUNTS_SHOWN
    assert "c0" not in shown
    assert take_quotas(None) == ()
