"""The driver's metrics. Progress is told apart from life: the newest commit beside the newest heartbeat."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_STEP_SECONDS = (0.01, 0.05, 0.25, 1, 5, 30, 120, 600, 3600)


class DriverMetrics:
    """A registry of its own: importing the driver leaves prometheus-client's global one alone."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self.heartbeat = Gauge(
            "durable_driver_heartbeat_timestamp_seconds", "Time of the newest heartbeat.", registry=registry
        )
        self.last_commit = Gauge(
            "durable_driver_last_commit_timestamp_seconds", "Time of the newest commit of the log.", registry=registry
        )
        self.epoch = Gauge("durable_driver_epoch", "Epoch of this drive.", registry=registry)
        self.recoveries = Counter(
            "durable_driver_recoveries", "Decided recoveries of interrupted calls.", ["kind", "mode"], registry=registry
        )
        self.steps = Counter("durable_driver_steps", "Finished tool calls.", ["tool", "result"], registry=registry)
        self.step_seconds = Histogram(
            "durable_driver_step_seconds", "Duration of tool calls.", ["tool"], buckets=_STEP_SECONDS, registry=registry
        )

        self.model_errors = Counter(
            "durable_driver_model_errors", "Requests to a model that failed.", ["kind"], registry=registry
        )

    def expose(self) -> bytes:
        return generate_latest(self._registry)
