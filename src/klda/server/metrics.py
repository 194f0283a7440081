"""What Prometheus reads at ``/v1/metrics``."""

from __future__ import annotations

from starlette.responses import Response

from klda.errors import require
from klda.server.service import Service

_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """Counters of a service, and gauges that are computed when the metrics are read."""

    def __init__(self, service: Service) -> None:
        self._prometheus = prometheus = require("prometheus_client", "server")
        self._registry = prometheus.CollectorRegistry()
        own = {"registry": self._registry}
        labels = ["method", "path", "status"]
        self._requests = prometheus.Counter("klda_requests", "Requests answered.", labels, **own)
        self._seconds = prometheus.Histogram(
            "klda_request_seconds", "Seconds per request.", ["path"], buckets=_SECONDS, **own
        )
        batches = prometheus.Histogram(
            "klda_batch_inputs", "Inputs encoded together.", buckets=_SIZES, **own
        )
        service.batcher.on_batch = batches.observe
        for name, meaning, value in (
            ("klda_classes", "Classes known.", lambda: len(service.snapshot.counts)),
            ("klda_samples", "Samples learned.", lambda: service.snapshot.samples),
            ("klda_version", "Number of the last change.", lambda: service.snapshot.version),
            ("klda_unfolded", "Changes only in the journal.", lambda: service.writer.unfolded),
        ):
            prometheus.Gauge(name, meaning, **own).set_function(value)
        healthy = prometheus.Gauge("klda_healthy", "Whether a part works.", ["part"], **own)
        for part in service.trouble:
            healthy.labels(part).set_function(lambda part=part: not service.trouble[part])
        queue = prometheus.Gauge("klda_queue", "Requests that wait.", ["kind"], **own)
        queue.labels("inference").set_function(lambda: service.batcher.waiting)
        queue.labels("changes").set_function(lambda: service.writer.waiting)

    def observe(self, method: str, path: str, status: int, seconds: float) -> None:
        """Count a request."""
        self._requests.labels(method, path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def response(self) -> Response:
        """Return the metrics in Prometheus' text format."""
        headers = {"Content-Type": self._prometheus.CONTENT_TYPE_LATEST}
        return Response(self._prometheus.generate_latest(self._registry), headers=headers)
