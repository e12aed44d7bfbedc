"""A price is sent by the client, and found in the broker."""

from confluent_kafka import Producer

from diamant import BlockingBroker


def test_a_price_is_sent(diamant_broker: BlockingBroker, diamant_topic: str) -> None:
    """What the producer sends is in the topic."""
    producer = Producer({"bootstrap.servers": diamant_broker.bootstrap_servers})
    producer.produce(diamant_topic, key="apple", value="0.40")
    assert producer.flush(10) == 0

    assert [(record.key, record.value) for _, record in diamant_broker.records(diamant_topic)] == [(b"apple", b"0.40")]
