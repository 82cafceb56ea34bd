"""``/metrics``: what Prometheus reads.

Takes: a ``NodeReading``. Gives: text in OpenMetrics' or Prometheus's format. Owns: the names,
labels and help texts of all metrics. Never: reads a file, or has a label without a bound.

    declarations   every metric; docs/reference/metrics.md is made of them
    samples        facts -> values; start here
    sheet          values -> text
    route          one answer for all scrapers of a second
"""

from wal2lake.web.metrics.declarations import METRICS, MetricDeclaration, MetricKind
from wal2lake.web.metrics.route import MetricsRoute
from wal2lake.web.metrics.samples import fill
from wal2lake.web.metrics.sheet import MetricSheet

__all__ = [
    "METRICS",
    "MetricDeclaration",
    "MetricKind",
    "MetricSheet",
    "MetricsRoute",
    "fill",
]
