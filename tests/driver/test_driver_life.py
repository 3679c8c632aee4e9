"""Signs of life: beats come while the loop runs, stop when it is blocked, and /livez says which."""

import asyncio
import io
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator

import pytest

from durable_base.errors import UsageError
from durable_driver.events import EventLine
from durable_driver.heartbeat import Heartbeat
from durable_driver.http import LifeServer
from durable_driver.metrics import DriverMetrics


def get(server: LifeServer, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


async def until(true: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "did not come true in time"
        await asyncio.sleep(0.005)


async def test_beats_come_at_once_and_then_every_period() -> None:
    heartbeat, beats = Heartbeat(0.02), list[int]()
    heartbeat.subscribe(beats.append)
    heartbeat.start()
    assert len(beats) == 1
    assert abs(beats[0] / 1000 - time.time()) < 5
    await until(lambda: len(beats) >= 5)
    heartbeat.stop()
    count = len(beats)
    await asyncio.sleep(0.1)
    assert len(beats) == count


async def test_a_blocked_loop_does_not_beat_and_catches_up_with_one_beat() -> None:
    heartbeat, beats = Heartbeat(0.05), list[float]()
    heartbeat.subscribe(lambda _: beats.append(time.monotonic()))
    heartbeat.start()
    time.sleep(0.6)  # noqa: ASYNC251 - the loop is to be blocked
    assert len(beats) == 1
    assert heartbeat.age_seconds() >= 0.6
    await until(lambda: len(beats) >= 4)
    heartbeat.stop()
    assert beats[3] - beats[1] > 0.04, "beats that were missed are not made up for"


@pytest.fixture
def metrics() -> DriverMetrics:
    return DriverMetrics()


@pytest.fixture
def age() -> list[float]:
    return [0.0]


@pytest.fixture
def server(metrics: DriverMetrics, age: list[float]) -> Iterator[LifeServer]:
    server = LifeServer(("127.0.0.1", 0), lambda: age[0], 10.0, metrics)
    yield server
    server.close()


def test_livez_fails_when_the_last_beat_is_too_old(server: LifeServer, age: list[float]) -> None:
    assert get(server, "/livez")[0] == 200
    age[0] = 10.5
    assert get(server, "/livez") == (503, "frozen: the newest heartbeat is 10.5 s old\n")


def test_metrics_tell_progress_from_life(server: LifeServer, metrics: DriverMetrics) -> None:
    metrics.heartbeat.set(1700.0)
    metrics.last_commit.set(1600.0)
    metrics.recoveries.labels("reattached", "transactional").inc()
    metrics.steps.labels("bash", "ok").inc()
    status, text = get(server, "/metrics")
    assert status == 200
    assert "durable_driver_heartbeat_timestamp_seconds 1700.0" in text
    assert "durable_driver_last_commit_timestamp_seconds 1600.0" in text
    assert 'durable_driver_recoveries_total{kind="reattached",mode="transactional"} 1.0' in text
    assert 'durable_driver_steps_total{result="ok",tool="bash"} 1.0' in text
    assert get(server, "/other")[0] == 404


def test_an_address_in_use_is_refused_by_name(server: LifeServer, metrics: DriverMetrics) -> None:
    with pytest.raises(UsageError, match=r"DURABLE_HTTP is '127.0.0.1:\d+'"):
        LifeServer(("127.0.0.1", server.port), lambda: 0.0, 10.0, metrics)


def test_events_are_json_lines_between_heartbeats() -> None:
    out = io.StringIO()
    line = EventLine(out, "s", 3, now=lambda: 1.5)
    line.beat(1234)
    line.emit("step.started", step=2, tool="bash", call=None)
    first, second = out.getvalue().splitlines()
    assert first == "CUA-HEARTBEAT 3 1234"
    assert json.loads(second) == {
        "time": 1500,
        "session": "s",
        "epoch": 3,
        "event": "step.started",
        "step": 2,
        "tool": "bash",
    }


def test_a_reader_that_has_gone_changes_nothing() -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    EventLine(Gone(), "s", 3).emit("settled")
    closed = io.StringIO()
    closed.close()
    EventLine(closed, "s", 3).beat(1)
