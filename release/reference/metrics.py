"""The generator of docs/reference/metrics.md, which prints the table of metrics.

python -m release.reference.metrics [FILE]
"""

from __future__ import annotations

import sys

from diamant.broker.metrics.metric_table import METRICS
from diamant.broker.network.request_metrics import LATENCY_BOUNDS_MS
from diamant.cleaner.rules.result import REASONS

_PAGE = """\
# Metrics and health

The metrics and health checks for monitoring systems.

<!-- Written by `make docs` from release/reference/metrics.py and the table of metrics: change those. -->

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
on, and `broker.http_url` has its address. These paths only read; with an authorizer, `/metrics` needs DESCRIBE on the cluster.
[HTTP](http.md) describes all other paths.

| path | answer |
|---|---|
| `/metrics` | all metrics, in Prometheus' text format (0.0.4) |
| `/health` | JSON. Status 200 while the broker accepts requests, 503 while it stops |
| `/healthz` | 200 as long as the broker answers; `/healthz?erasure`: 503 past a deadline of [erasure](../how-to/explain.md) |
| `/readyz` | 200 while the broker accepts requests, 503 while it stops |

    $ curl -s http://127.0.0.1:9644/health
    {"status": "ok", "live": true, "ready": true, "version": "…", "cluster_id": "…", "node_id": 1,
     "listeners": ["127.0.0.1:9092"], "uptime_s": 12.3, "partitions": 4, "partitions_offline": 0}

- `live`: the broker works. One thread does all work, so a response within a second or two proves it.
- `ready`: the broker accepts requests of Kafka clients.
- `partitions_offline`: partitions that could not be opened or created (which is tried every second), or cannot be written.
  The others are served, so the broker is ready.

HTTP starts after the Kafka port. The first request loads its libraries, which takes some tenths of a second and about 17 MB. If
the address is in use, the broker logs one line and runs without HTTP, so several brokers on one machine need no settings.

Limits: 64 connections, one request each, 10 seconds for a whole request, 8 KiB for the request line and for each header.
Requests for `/metrics` that arrive during a collection wait and get the same response.

## For Prometheus

    scrape_configs:
      - job_name: diamant
        static_configs: [{targets: ["127.0.0.1:9644"]}]

[Alert rules](prometheus-rules.yaml) watch the deadlines of erasure.

## About the metrics

- **Names.** A metric of Kafka's has the name that Prometheus' JMX exporter derives from its MBean with the example rules
  for Kafka (Strimzi's give the same). So dashboards and alerts made for Kafka work. Names that begin with `diamant_`
  are Diamant's own. Counters start at zero when the broker starts.
- **Presence.** The metrics of the cleaner exist if the cleaner is on (`log.cleaner.enable`), those per partition for each
  compacted partition. The metrics of groups and of transactions exist once the broker has a group, or a transaction.
- **Labels.** `topic` *and sum* means one sample for each topic, and one without the label for all topics, including deleted
  ones. `logDirectory` is the path without Kafka's quotes. `request` is the name of the API, `error` the
  name of the error code; `NONE` is not counted. `reason` of removed records is one of: {reasons}.
- **Limits of one scrape.** The APIs and versions that were used; the 10,000 greatest lags; the 1,000 oldest open
  transactions.
- **Times of requests.** Recording a request takes about a microsecond. The time of a fetch includes its wait for data, as
  in Kafka. Kafka's `FetchConsumer` equals `Fetch` here, because there are no followers. The upper bounds of the
  histogram's buckets are, in milliseconds, {bounds}.
- **The process.** The Prometheus client library adds `process_cpu_seconds_total`, `process_resident_memory_bytes`,
  `process_start_time_seconds`, `process_open_fds`, `process_max_fds` and `process_virtual_memory_bytes`.

## Metrics

| name | Kafka's MBean | meaning | unit | type | labels |
|---|---|---|---|---|---|
"""


def metrics_page() -> str:
    """Return the text of docs/reference/metrics.md."""
    rows = []
    for metric in METRICS.values():
        mbean = "none" if metric.mbean is None else f"`{metric.mbean}`"
        labels = ", ".join(metric.labels) + (" and sum" if metric.has_sum else "")
        rows.append(f"| `{metric.name}` | {mbean} | {metric.meaning} | {metric.unit} | {metric.kind} | {labels} |\n")
    page = _PAGE.replace("{reasons}", ", ".join(f"`{reason}`" for reason in REASONS))
    return page.replace("{bounds}", ", ".join(f"{bound:g}" for bound in LATENCY_BOUNDS_MS)) + "".join(rows)


def main() -> None:
    """Write the page to the file named on the command line, or to standard output."""
    if len(sys.argv) > 1:
        with open(sys.argv[1], "w", encoding="utf-8") as file:
            file.write(metrics_page())
    else:
        sys.stdout.write(metrics_page())


if __name__ == "__main__":
    main()
