"""The disks of three brokers of Apache Kafka: the cluster's certificate says values-gone only with all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from diamant.broker.clusters.certificate import signing_key
from diamant.broker.clusters.operations import erase, resume
from diamant.broker.clusters.register import Register
from diamant.broker.inspection.disks import ReadLimit, certify_disks, join
from diamant.cleaner.papers.paper_verification import verify_certificate
from diamant.storage.env.env import RealEnv
from tests.broker.clusters.real_kafka import real_kafka

KEY = b"customer-000042"


@pytest.mark.slow
def test_each_broker_needs_its_own_proof(tmp_path: Path) -> None:
    """A stopped broker leaves the certificate open and is named; after a resumed run, the disks of two are not enough."""
    register = Register(tmp_path / "state")
    signing = signing_key(str(register.directory))
    with real_kafka(tmp_path, brokers=3, min_insync_replicas="2") as cluster:
        topic = cluster.create("three-disks")
        pairs = [(b"customer-%06d" % (40 + number % 10), b"value %d of someone" % number) for number in range(200)]
        cluster.produce(topic, pairs)
        cluster.stop(3)
        opened = erase(cluster.client, KEY, [topic], reason="asked", timeout_s=180.0, register=register)
        (refused,) = opened["certificate"]["not_certified"]
        assert [problem["file"] for problem in refused["problems"]] == [f"{topic}-0@3"]
        assert verify_certificate(opened["certificate"], signing.public_bytes).outcome == "not-certified"
        cluster.start(3)
        cluster.wait_up(3)
        cluster.wait_in_sync(topic, 3)
        certificate = resume(cluster.client, opened["id"], timeout_s=180.0, register=register)["certificate"]
        assert certificate["state"] == "unreadable"
        assert [row["broker"] for row in certificate["claims"][0]["replicas"]] == [1, 2, 3]
        disks = [
            certify_disks(RealEnv(), [str(cluster.data(node))], certificate, KEY, signing, ReadLimit(0))
            for node in (1, 2, 3)
        ]
        assert [(disk["broker"], disk["state"]) for disk in disks] == [
            (1, "values-gone"),
            (2, "values-gone"),
            (3, "values-gone"),
        ]
    two = join(certificate, disks[:2], signing)
    assert (two["state"], two["without_disk"]) == ("unreadable", [f"{topic}-0@3"])
    three = join(two, disks[2:], signing)
    assert (three["state"], three["without_disk"]) == ("values-gone", [])
    assert verify_certificate(three, signing.public_bytes).outcome == "valid"
