"""Two operators at once, and one that is killed between two writes: no epoch twice, one pod per epoch, and it goes on."""

import signal

import pytest
from operator_bed import spec, wait

CRASH_POINTS = [
    "operator.space_status_written",
    "operator.space_pod_created",
    "operator.space_written",
    "operator.session_written",
    "operator.pod_created",
]


def finished(api, namespace, name):
    return lambda: api.condition(namespace, name, "Succeeded") == ("True", "Completed")


def runs_some(kubelet, name, above=0):
    """The newest running driver of the session, above an epoch; empty for none."""

    def found():
        epochs = [
            int(pod.rpartition("-e")[2]) for pod in kubelet.seen if pod.startswith(f"{name}-e") and kubelet.runs(pod)
        ]
        return f"{name}-e{max(epochs)}" if epochs and max(epochs) > above else ""

    return found


def assert_one_pod_per_epoch(kubelet, name):
    for pod, uids in kubelet.seen.items():
        assert len(uids) == 1, f"{pod} was made {len(uids)} times"
    epochs = kubelet.epochs[name]
    assert epochs == sorted(set(epochs)), f"epochs went back or were issued twice: {epochs}"


def test_two_operators_that_both_believe_to_lead_issue_no_epoch_twice(api, namespace, kubelet, start_operator):
    """Two Leases, so both lead at once for the whole of the session's life: the worst that a lost Lease can do."""
    both = [start_operator(name=name) for name in ("one", "two")]
    for process in both:
        wait("it leads", lambda process=process: "leading" in process.text(), 30)
    api.make(
        namespace, "durablesessions", "race", spec(retry={"maxAttempts": 100, "initialSeconds": 1, "maxSeconds": 1})
    )
    driver = wait("the first driver runs", runs_some(kubelet, "race"), 30)
    for turn in range(4):
        if turn % 2:
            kubelet.remove(driver)
        else:
            kubelet.end(driver, 1)
        driver = wait("the next driver runs", runs_some(kubelet, "race", above=int(driver.rpartition("-e")[2])))
    kubelet.settle(driver)
    wait("it succeeded", finished(api, namespace, "race"))
    assert_one_pod_per_epoch(kubelet, "race")
    status = api.status(namespace, "race")
    pods = [pod for pod in kubelet.seen if pod.startswith("race-e")]
    assert len(pods) == status["attempts"] == 5
    assert all(not process.died() for process in both)


def test_a_leader_that_sleeps_past_its_lease_does_nothing_when_it_wakes(api, namespace, kubelet, start_operator):
    first = start_operator()
    wait("the first leads", lambda: "leading" in first.text(), 30)
    api.make(namespace, "durablesessions", "slept", spec())
    wait("its driver runs", lambda: kubelet.runs("slept-e1"), 30)
    first.signal(signal.SIGSTOP)
    second = start_operator()
    wait("the second takes over", lambda: "leading" in second.text(), 30)
    kubelet.end("slept-e1", 1)
    wait("the next driver runs", lambda: kubelet.runs("slept-e2"))
    first.signal(signal.SIGCONT)
    wait("the first ends itself", first.died)
    kubelet.settle("slept-e2")
    wait("it succeeded", finished(api, namespace, "slept"))
    assert_one_pod_per_epoch(kubelet, "slept")


def test_a_standby_takes_over_at_once_when_the_leader_is_told_to_stop(api, namespace, start_operator):
    first = start_operator()
    wait("the first leads", lambda: "leading" in first.text(), 30)
    second = start_operator()
    wait("the second stands by", lambda: "serving" in second.text(), 30)
    assert "leading" not in second.text()
    first.signal(signal.SIGTERM)
    wait("the first has ended", first.died)
    assert first.process.returncode == 0
    wait("the second leads", lambda: "leading" in second.text())


@pytest.mark.parametrize("point", CRASH_POINTS)
def test_an_operator_killed_between_two_writes_goes_on_from_what_is_written(
    api, namespace, kubelet, start_operator, point
):
    crashing = start_operator(crash=point)
    api.make(namespace, "durablesessions", "killed", spec())
    wait(f"it died at {point}", crashing.died, 30)
    assert crashing.process.returncode == -signal.SIGKILL
    start_operator()
    driver = wait("a driver runs", runs_some(kubelet, "killed"), 30)
    # Killed before the session's write, the epoch is a gap; killed after it, the same epoch is started.
    assert driver == ("killed-e2" if point == "operator.space_written" else "killed-e1")
    kubelet.settle(driver)
    wait("it succeeded", finished(api, namespace, "killed"))
    assert_one_pod_per_epoch(kubelet, "killed")
    assert set(kubelet.seen) == {"killed-g1", driver}


def test_an_operator_killed_while_a_driver_ends_counts_the_end_once(api, namespace, kubelet, start_operator):
    first = start_operator()
    api.make(namespace, "durablesessions", "once", spec())
    wait("its driver runs", lambda: kubelet.runs("once-e1"), 30)
    wait("its uid is recorded", lambda: api.status(namespace, "once").get("driver", {}).get("uid"))
    first.process.kill()
    first.process.wait()
    kubelet.end("once-e1", 1)
    start_operator()
    wait("the next driver runs", lambda: kubelet.runs("once-e2"), 30)
    status = api.status(namespace, "once")
    assert (status["countedAttempts"], status["attempts"], status["lastExit"]["reason"]) == (1, 2, "Crashed")
    kubelet.settle("once-e2")
