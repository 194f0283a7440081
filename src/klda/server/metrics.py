"""What Prometheus reads at ``/v1/metrics``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

from klda.errors import require
from klda.server.service import Service

MULTIPROCESS = "PROMETHEUS_MULTIPROC_DIR"
_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


class Metrics:
    """Counters of one service; with several workers, of all of them together.

    Parameters
    ----------
    service : Service
        Asked for its sizes when the metrics are read.
    """

    def __init__(self, service: Service) -> None:
        prometheus = require("prometheus_client", "server")
        self._prometheus = prometheus
        self.registry = prometheus.CollectorRegistry()
        shared = os.environ.get(MULTIPROCESS)
        own: dict[str, Any] = {"registry": None if shared else self.registry}
        if shared:
            multiprocess = require("prometheus_client.multiprocess", "server")
            multiprocess.MultiProcessCollector(self.registry, path=shared)
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
        self.registry.register(_Sizes(service))

    def text(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        return self._prometheus.generate_latest(self.registry)

    @property
    def content_type(self) -> str:
        """Media type of :meth:`text`."""
        return str(self._prometheus.CONTENT_TYPE_LATEST)


class _Sizes:
    """What is looked up when the metrics are read."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Any]:
        """Yield the metrics."""
        gauge = require("prometheus_client.core", "server").GaugeMetricFamily
        service = self._service
        if not service.ready:
            return
        read: tuple[tuple[str, str, Callable[[], float]], ...] = (
            ("klda_classes", "Classes known.", lambda: len(service.snapshot.counts)),
            ("klda_samples", "Samples learned.", lambda: service.snapshot.samples),
            ("klda_version", "Number of the last change.", lambda: service.snapshot.version),
            ("klda_unfolded", "Changes only the journal has.", lambda: service.writer.unfolded),
        )
        for name, text, value in read:
            yield gauge(name, text, value=value())
        healthy = gauge("klda_healthy", "Whether a part can do its work.", labels=["part"])
        for part, reason in service.trouble.items():
            healthy.add_metric([part], not reason)
        yield healthy
        queue = gauge("klda_queue", "Requests that wait.", labels=["kind"])
        queue.add_metric(["inference"], service.inference.waiting)
        queue.add_metric(["changes"], service.writer.waiting)
        yield queue
