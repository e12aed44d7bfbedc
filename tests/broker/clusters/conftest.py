"""The clusters that the tests of this folder run against."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from diamant.broker.clusters.register import Register
from tests.broker.clusters.any_cluster import AnyCluster, diamant
from tests.broker.clusters.real_kafka import real_kafka


@pytest.fixture(scope="module", params=["diamant", pytest.param("kafka", marks=pytest.mark.slow)])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AnyCluster]:
    """A cluster of one broker: Diamant, asked nothing but Kafka's protocol, or Apache Kafka."""
    path = tmp_path_factory.mktemp("cluster")
    with diamant(path) if request.param == "diamant" else real_kafka(path) as running:
        yield running


@pytest.fixture
def register(tmp_path_factory: pytest.TempPathFactory) -> Register:
    """An empty register of open erasures."""
    return Register(tmp_path_factory.mktemp("state"))
