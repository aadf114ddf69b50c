"""What a server counts, in Prometheus's text form."""

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from assay.contracts import Judgement
from assay.serve.service import Service
from assay.serve.wire import ScoredItem

CONTENT_TYPE = CONTENT_TYPE_LATEST
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    """Counters of one server; names begin with `assay_`, times are in seconds."""

    def __init__(self) -> None:
        """Start at zero, apart from any other metrics of the process."""
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "assay_requests", "Requests by route and HTTP status.", ["route", "code"], registry=self._registry
        )
        self._seconds = Histogram(
            "assay_request_seconds", "Time to answer a request.", ["route"], buckets=SECONDS, registry=self._registry
        )
        self._items = Counter("assay_items", "Answered items by status.", ["status"], registry=self._registry)
        self._verdicts = Counter(
            "assay_verdicts", "Verdicts by source and status.", ["source", "status"], registry=self._registry
        )
        self._judging = Histogram(
            "assay_verdict_seconds",
            "Time of a verdict that was not cached.",
            ["source"],
            buckets=SECONDS,
            registry=self._registry,
        )
        self._held = Gauge("assay_held_items", "Items under way.", registry=self._registry)
        self._queue = Gauge("assay_queue_items", "Most items that may be under way.", registry=self._registry)
        self._healthy = Gauge(
            "assay_source_healthy",
            "0 where too many verdicts failed of late.",
            ["source"],
            registry=self._registry,
        )

    def request(self, route: str, code: int, seconds: float) -> None:
        """Count one answered request; `route` is a known path or `other`."""
        self._requests.labels(route, str(code)).inc()
        self._seconds.labels(route).observe(seconds)

    def items(self, items: tuple[ScoredItem, ...]) -> None:
        """Count the items of an answer."""
        for item in items:
            self._items.labels(item.status).inc()

    def verdict(self, judgement: Judgement) -> None:
        """Count one verdict."""
        self._verdicts.labels(judgement.source, judgement.status).inc()
        if not judgement.cached:
            self._judging.labels(judgement.source).observe(judgement.latency_s)

    def text(self, service: Service) -> bytes:
        """Everything as Prometheus reads it."""
        self._held.set(service.admission.held)
        self._queue.set(service.admission.queue)
        for source in service.panel.sources.values():
            self._healthy.labels(source.identity.label).set(not source.health.unhealthy)
        return generate_latest(self._registry)
