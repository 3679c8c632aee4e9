"""What Prometheus is told. Names, labels and their number are promises (rule 34): no uids, per-session series of unfinished
sessions only, and beyond `PER_SESSION_MAX` only aggregates.

Series that follow from the newest statuses are made at the scrape, so that none freezes or outlives its session.
"""

from __future__ import annotations

import time
from collections import Counter as Count
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import prometheus_client as prom
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from durable_coordinator.status import SessionStatus, is_true
from durable_operator.memory import Key, Memory, Stream

PER_SESSION_MAX = 1000
KEEP_SECONDS = 300.0  # a finished session's series, so that the last values are scraped


@dataclass
class _Watched:
    status: SessionStatus
    ended: float | None = None  # monotonic


class Metrics(Collector):
    """One per process; a standby exports only what concerns itself."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._sessions: dict[Key, _Watched] = {}
        self._restarts: Count[tuple[str, str, str]] = Count()
        self.registry = prom.CollectorRegistry()
        self.drives = self._counter("durable_drives", "Ended drives.", "exit")
        self.epochs_issued = self._counter("durable_epochs_issued", "Epochs issued.")
        self.epoch_conflicts = self._counter(
            "durable_epoch_conflicts", "Epochs not issued because someone else wrote first."
        )
        self.stale_refused = self._counter(
            "durable_stale_refused", "Drivers that a resource refused as stale.", "resource"
        )
        self.placements = self._counter("durable_space_placements", "Spaces placed.", "restored")
        self.recoveries = self._counter("durable_recoveries", "Interrupted calls that were recovered.", "mode", "event")
        self.reconcile_seconds = prom.Histogram(
            "durable_reconcile_seconds", "Time to read, plan and act once.", ["kind"], registry=self.registry
        )
        self.resume_seconds = prom.Histogram(
            "durable_resume_seconds",
            "From a driver's end to the next driver's first beat.",
            buckets=(1, 2, 5, 10, 20, 30, 60, 90, 120, 300, 600),
            registry=self.registry,
        )
        self.lease_wait_seconds = prom.Histogram(
            "durable_lease_wait_seconds",
            "How long sessions waited for a Space.",
            buckets=(0.5, 1, 2, 5, 10, 30, 60, 300, 1800, 7200, 86400),
            registry=self.registry,
        )
        self.queue_depth = self._gauge("durable_workqueue_depth", "Keys due or in work.")
        self.leading = self._gauge("durable_leader", "1 if this replica leads.")
        build = prom.Info("durable_build", "The operator's version.", registry=self.registry)
        build.info({"version": _version()})
        self.registry.register(self)

    def observe(self, key: Key, status: SessionStatus) -> None:
        """The newest status of a session."""
        watched = self._sessions.setdefault(key, _Watched(status))
        watched.status = status
        if not is_true(status.conditions, "Finished"):
            watched.ended = None
        elif watched.ended is None:
            watched.ended = time.monotonic()

    def forget(self, key: Key) -> None:
        """The session was deleted."""
        self._sessions.pop(key, None)
        for known in [entry for entry in self._restarts if entry[:2] == key]:
            del self._restarts[known]

    def restarted(self, key: Key, reason: str) -> None:
        """Another drive was started; `reason` is why the one before it ended."""
        self._restarts[(*key, reason)] += 1

    def collect(self) -> Iterator[prom.Metric]:
        yield self._conditions()
        shown = self._shown()
        labels = ["namespace", "session"]
        epoch = GaugeMetricFamily("durable_session_epoch", "The newest epoch.", labels=labels)
        beat = GaugeMetricFamily(
            "durable_session_last_heartbeat_timestamp_seconds", "When the driver's last beat arrived.", labels=labels
        )
        age = GaugeMetricFamily(
            "durable_session_heartbeat_age_seconds", "Age of the driver's last beat.", labels=labels
        )
        restarts = CounterMetricFamily(
            "durable_session_restarts",
            "Drives after the first, by why the one before ended.",
            labels=[*labels, "reason"],
        )
        for key, watched in shown.items():
            epoch.add_metric(list(key), watched.status.epoch)
            stream = self._stream(key, watched.status)
            if stream is not None and stream.beat is not None and stream.beat_unix is not None:
                beat.add_metric(list(key), stream.beat_unix)
                if watched.ended is None:
                    age.add_metric(list(key), time.monotonic() - stream.beat)
        for (namespace, session, reason), count in self._restarts.items():
            if (namespace, session) in shown:
                restarts.add_metric([namespace, session, reason], count)
        yield from (epoch, beat, age, restarts)

    def describe(self) -> Iterator[prom.Metric]:
        return iter(())  # nothing to collect before there are sessions

    def _shown(self) -> dict[Key, _Watched]:
        now = time.monotonic()
        shown = {k: w for k, w in self._sessions.items() if w.ended is None or now - w.ended < KEEP_SECONDS}
        return shown if len(shown) <= PER_SESSION_MAX else {}

    def _conditions(self) -> prom.Metric:
        counts: Count[tuple[str, str]] = Count()
        for watched in self._sessions.values():
            for condition in watched.status.conditions:
                if condition.type in ("Ready", "Progressing", "Succeeded"):
                    counts[(condition.type, condition.reason)] += 1
        family = GaugeMetricFamily(
            "durable_sessions", "Sessions by condition and its reason.", labels=["condition", "reason"]
        )
        for pair, count in counts.items():
            family.add_metric(list(pair), count)
        return family

    def _stream(self, key: Key, status: SessionStatus) -> Stream | None:
        memory = self._memory.sessions.get(key)
        return memory.streams.get(status.driver.uid) if memory is not None and status.driver is not None else None

    def _counter(self, name: str, text: str, *labels: str) -> prom.Counter:
        return prom.Counter(name, text, list(labels), registry=self.registry)

    def _gauge(self, name: str, text: str) -> prom.Gauge:
        return prom.Gauge(name, text, registry=self.registry)


def _version() -> str:
    try:
        return version("durable-sessions")
    except PackageNotFoundError:
        return "unknown"
