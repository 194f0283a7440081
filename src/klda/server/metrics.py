"""What Prometheus reads at ``/v1/metrics``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from klda.errors import require
from klda.server.service import Service

_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


class Metrics:
    """Counters of a service."""

    def __init__(self, service: Service) -> None:
        prometheus = require("prometheus_client", "server")
        self._prometheus = prometheus
        self._registry = prometheus.CollectorRegistry()
        own = {"registry": self._registry}
        labels = ["method", "path", "status"]
        self._requests = prometheus.Counter("klda_requests", "Requests answered.", labels, **own)
        self._seconds = prometheus.Histogram(
            "klda_request_seconds", "Seconds per request.", ["path"], buckets=_BUCKETS, **own
        )
        sizes = (1, 2, 4, 8, 16, 32, 64, 128)
        batches = prometheus.Histogram(
            "klda_batch_inputs", "Inputs encoded together.", buckets=sizes, **own
        )
        service.batcher.on_batch = batches.observe
        self._registry.register(_Sizes(service))

    def observe(self, method: str, path: str, status: int, seconds: float) -> None:
        """Count a request."""
        self._requests.labels(method, path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def text(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        return self._prometheus.generate_latest(self._registry)

    @property
    def content_type(self) -> str:
        """Media type of :meth:`text`."""
        return str(self._prometheus.CONTENT_TYPE_LATEST)


class _Sizes:
    """Gauges that are computed when the metrics are read."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Any]:
        """Yield the metrics."""
        service = self._service
        if not service.ready:
            return
        gauge = require("prometheus_client.core", "server").GaugeMetricFamily
        snapshot = service.snapshot
        yield gauge("klda_classes", "Classes known.", value=len(snapshot.counts))
        yield gauge("klda_samples", "Samples learned.", value=snapshot.samples)
        yield gauge("klda_version", "Number of the last change.", value=snapshot.version)
        unfolded = service.writer.unfolded
        yield gauge("klda_unfolded", "Changes that only the journal has.", value=unfolded)
        healthy = gauge("klda_healthy", "Whether a part works.", labels=["part"])
        for part, reason in service.trouble.items():
            healthy.add_metric([part], not reason)
        yield healthy
        queue = gauge("klda_queue", "Requests that wait.", labels=["kind"])
        queue.add_metric(["inference"], service.batcher.waiting)
        queue.add_metric(["changes"], service.writer.waiting)
        yield queue
