"""`erase(..., engine="spark")`: the certificate equals that of any other erasure, and names the runner."""

from __future__ import annotations

from pathlib import Path

import pytest

from diamant import Broker
from diamant.broker.operation_errors import BadArgument
from diamant.cleaner.evidence.certificates.page import certificate_page
from tests.broker.erasure.brokers import config, env_at
from tests.broker.erasure.constants import KEY, PERSON
from tests.broker.erasure.records import create, write
from tests.broker.operations.test_compact_on_spark import fake

__all__ = ["fake"]  # a fixture: drivers without Spark


@pytest.mark.slow
async def test_an_erasure_is_certified_whoever_compacts(tmp_path: Path) -> None:
    """On request Spark compacts: the certificate names it, with the state, claims and segments of a local erasure."""
    certificates = []
    for name, engine in (("spark", "spark"), ("local", None)):
        async with Broker(config(tmp_path / name), env=env_at()) as broker:
            await create(broker)
            for number in range(30):
                write(broker, (KEY, PERSON), (b"other", b"%d" % number))
            with pytest.raises(BadArgument, match="expected one of inline, process, spark, got 'abacus'"):
                await broker.erase(KEY, "users", reason="x", engine="abacus")
            erasure = await broker.erase(KEY, ["users"], reason="x", engine=engine)
            certificates.append(erasure.certificate)
            page = certificate_page(erasure.certificate)
            assert ("Apache Spark wrote new files" in page) is (name == "spark")
    spark, local = certificates
    assert [one["done"][0]["runners"] for one in certificates] == [["spark"], ["inline"]]
    assert spark["state"] == local["state"] == "values-gone"
    for part in ("claims", "segments", "not_certified"):
        assert spark[part] == local[part]
