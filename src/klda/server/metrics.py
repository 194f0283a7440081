"""What Prometheus reads at ``/v1/metrics``."""

from __future__ import annotations

from typing import Any

from klda._optional import require
from klda.server.service import Service

_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


class Metrics:
    """Counters of one service.

    Parameters
    ----------
    service : Service
        Asked for its sizes when the metrics are read.
    """

    def __init__(self, service: Service) -> None:
        prometheus = require("prometheus_client", "server")
        self._prometheus = prometheus
        self.registry = prometheus.CollectorRegistry()
        own: dict[str, Any] = {"registry": self.registry}
        self.requests = prometheus.Counter(
            "klda_requests", "Requests answered.", ["method", "path", "status"], **own
        )
        self.seconds = prometheus.Histogram(
            "klda_request_seconds",
            "Seconds from request to answer.",
            ["path"],
            buckets=_BUCKETS,
            **own,
        )
        self.batches = prometheus.Histogram(
            "klda_batch_inputs",
            "Inputs encoded together.",
            buckets=(1, 2, 4, 8, 16, 32, 64, 128),
            **own,
        )
        service.inference.on_batch = self.batches.observe
        writer, inference = service.writer, service.inference
        for name, text, read in (
            ("klda_classes", "Classes known.", lambda: len(service.snapshot.counts)),
            ("klda_samples", "Samples learned.", lambda: service.snapshot.samples),
            ("klda_version", "Number of the last change.", lambda: service.snapshot.version),
            ("klda_unfolded", "Changes that only the journal has.", lambda: writer.unfolded),
        ):
            prometheus.Gauge(name, text, **own).set_function(read)
        queue = prometheus.Gauge("klda_queue", "Requests that wait.", ["kind"], **own)
        queue.labels("inference").set_function(lambda: inference.waiting)
        queue.labels("changes").set_function(lambda: writer.waiting)

    def text(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        return self._prometheus.generate_latest(self.registry)

    @property
    def content_type(self) -> str:
        """Media type of :meth:`text`."""
        return str(self._prometheus.CONTENT_TYPE_LATEST)
