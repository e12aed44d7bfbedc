"""Prints docs/reference/metrics.md from the table of metrics, so that it says what the broker shows.

python -m diamant.broker.reference.metrics [FILE]
"""

from __future__ import annotations

import sys

from diamant.broker.metrics.table import METRICS
from diamant.broker.network.request_metrics import LATENCY_BOUNDS_MS
from diamant.cleaner.rules.result import REASONS

_PAGE = """\
# Metrics and health

What a broker shows to monitoring systems, and where.

<!-- Written by `make docs` from diamant/broker/reference/metrics.py and the table of metrics: change those. -->

- [Paths](#paths)
- [For Prometheus](#for-prometheus)
- [About the metrics](#about-the-metrics)
- [Metrics](#metrics)

## Paths

`diamant start` answers HTTP on `127.0.0.1:9644`. The configuration `diamant.http.listen` sets another address (`0.0.0.0:9644`
for every interface, port 0 for a free port, which `diamant start` prints). An empty one turns HTTP off:

    diamant start --set diamant.http.listen=0.0.0.0:9644
    diamant start --set diamant.http.listen=

A broker inside a Python program or a test has no HTTP by default: `BrokerConfig(diamant_http_listen="127.0.0.1:0")` turns it
on, then use `broker.http_url`. There are no passwords and no TLS; these paths only read. [HTTP](http.md) has all others.

| path | answer |
|---|---|
| `/metrics` | all metrics, in Prometheus' text format (0.0.4) |
| `/health` | JSON. Status 200 while the broker takes requests, 503 while it stops |
| `/healthz` | 200 as long as the broker answers; `/healthz?erasure`: 503 past a deadline of [erasure](../how-to/explain.md) |
| `/readyz` | 200 while the broker takes requests, 503 while it stops |

    $ curl -s http://127.0.0.1:9644/health
    {"status": "ok", "live": true, "ready": true, "version": "0.2.0", "cluster_id": "…", "node_id": 1,
     "listeners": ["127.0.0.1:9092"], "uptime_s": 12.3, "partitions": 4, "partitions_offline": 0}

- `live`: the broker works. One thread does all work, so an answer within a second or two proves it.
- `ready`: it accepts requests of Kafka clients.
- `partitions_offline`: how many could not be opened or cannot be written. The others are served, so the broker is still ready.

HTTP starts after the Kafka port answers. The first request loads its libraries: it takes some tenths of a second longer, and
makes the process about 17 MB larger. If the address is in use, the broker logs one line and runs without HTTP, so several
brokers on one machine need no settings.

Limits: 64 connections, one request each, 10 seconds for all of it, 8 KiB for the request's line and each header. While one
answer to `/metrics` is being made, further requests wait and get the same.

## For Prometheus

    scrape_configs:
      - job_name: diamant
        static_configs: [{targets: ["127.0.0.1:9644"]}]

[Alert rules](prometheus-rules.yaml) watch the deadlines of erasure.

## About the metrics

- **Names.** Where Kafka has the metric, the name is what Prometheus' JMX exporter makes of Kafka's MBean with its example
  rules for Kafka (Strimzi's give the same). So dashboards and alerts made for Kafka work. Names that begin with `diamant_`
  are Diamant's own. Counters begin at zero with the broker.
- **Presence.** The metrics of the cleaner exist if there is a cleaner (`log.cleaner.enable`), its per-partition ones for each
  compacted partition. Those of groups and of transactions exist once the broker has a group, or a transaction.
- **Labels.** `topic` *and sum* means one sample for each topic, and one without the label for all topics, deleted ones
  included. `logDirectory` is the path without the quotes that Kafka puts around it. `request` is the API's name, `error` the
  name of the code; `NONE` is not counted. `reason` of removed records is one of: {reasons}.
- **Limits of one scrape.** Requests by API and version, for those that were used; the 10,000 greatest of all lags; the age of
  the 1,000 oldest open transactions.
- **Times of requests.** Recording a request takes about a microsecond. A fetch that waits for data counts with its wait, as
  in Kafka. Kafka's `FetchConsumer` is the same as `Fetch` here, because there are no followers. The upper ends of the
  histogram's buckets are, in milliseconds, {bounds}.
- **The process.** The Prometheus client library adds `process_cpu_seconds_total`, `process_resident_memory_bytes`,
  `process_start_time_seconds`, `process_open_fds`, `process_max_fds` and `process_virtual_memory_bytes`.

## Metrics

| name | Kafka's MBean | meaning | unit | type | labels |
|---|---|---|---|---|---|
"""


def metrics_page() -> str:
    """The text of docs/reference/metrics.md."""
    rows = []
    for metric in METRICS.values():
        mbean = "none" if metric.mbean is None else f"`{metric.mbean}`"
        labels = ", ".join(metric.labels) + (" and sum" if metric.has_sum else "")
        rows.append(f"| `{metric.name}` | {mbean} | {metric.meaning} | {metric.unit} | {metric.kind} | {labels} |\n")
    page = _PAGE.replace("{reasons}", ", ".join(f"`{reason}`" for reason in REASONS))
    return page.replace("{bounds}", ", ".join(f"{bound:g}" for bound in LATENCY_BOUNDS_MS)) + "".join(rows)


def main() -> None:
    """Write the page to the file that is named, or to standard output."""
    if len(sys.argv) > 1:
        with open(sys.argv[1], "w", encoding="utf-8") as file:
            file.write(metrics_page())
    else:
        sys.stdout.write(metrics_page())


if __name__ == "__main__":
    main()
