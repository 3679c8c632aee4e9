"""One session's way through a real API server: placed, driven, ended in each way, driven again."""

import re
import urllib.request

import pytest
from operator_bed import now, spec, wait


@pytest.fixture
def run(api, shared):
    """Start a session of this name, and wait until its first driver runs."""
    namespace, kubelet, _ = shared

    def start(name, **more):
        api.make(namespace, "durablesessions", name, spec(**more))
        wait(f"{name}-e1 runs", lambda: kubelet.runs(f"{name}-e1"), 30)

    return start


def condition(api, shared, name, type):
    return api.condition(shared[0], name, type)


def events(api, namespace, name):
    """Messages."""
    found = api.core.list_namespaced_event(namespace, field_selector=f"involvedObject.name={name}").items
    return {event.message for event in found}


def test_a_session_is_placed_driven_and_succeeds(api, shared, run):
    namespace, kubelet, _ = shared
    run("plain")
    wait("it is driving", lambda: condition(api, shared, "plain", "Ready") == ("True", "Driving"))
    status = api.status(namespace, "plain")
    assert (status["epoch"], status["attempts"], status["leaseToken"]) == (1, 1, 1)
    assert status["driver"]["pod"] == "plain-e1"
    assert {status["driver"]["uid"]} == kubelet.seen["plain-e1"]
    assert status["space"]["generation"] == 1
    assert status["log"] == {"storage": "PersistentVolumeClaim", "location": "plain-log"}
    space = api.status(namespace, "plain", "durablespaces")
    assert (space["holder"]["name"], space["epoch"], space["generation"]) == ("plain", 1, 1)

    kubelet.settle("plain-e1", answer="42")
    wait("it succeeded", lambda: condition(api, shared, "plain", "Succeeded") == ("True", "Completed"))
    assert condition(api, shared, "plain", "Finished") == ("True", "Completed")
    assert api.status(namespace, "plain")["answer"] == "42"
    wait("its Space is gone", lambda: api.get(namespace, "durablespaces", "plain") is None)
    wait("that is told as usual", lambda: condition(api, shared, "plain", "SpaceReady") == ("False", "Finished"))
    assert "after 1 drive: Completed" in events(api, namespace, "plain")


def test_a_crashed_driver_is_followed_by_the_next_epoch(api, shared, run):
    namespace, kubelet, operator = shared
    run("crash")
    kubelet.end("crash-e1", 1)
    wait("the next driver runs", lambda: kubelet.runs("crash-e2"))
    status = api.status(namespace, "crash")
    assert status["lastExit"]["reason"] == "Crashed"
    assert status["countedAttempts"] == 1
    wait("it is told", lambda: "epoch 2: the drive before it ended: Crashed" in events(api, namespace, "crash"))
    assert "crash-e1" in api.pods(namespace), "an ended driver stays, for its logs"
    with urllib.request.urlopen(f"http://{operator.http}/metrics") as answer:
        metrics = answer.read().decode()
    labels = f'namespace="{namespace}",reason="Crashed",session="crash"'
    assert f"durable_session_restarts_total{{{labels}}} 1.0" in metrics
    assert re.search(rf'durable_session_epoch{{namespace="{namespace}",session="crash"}} 2.0', metrics)
    kubelet.settle("crash-e2")


def test_a_fenced_driver_is_followed_above_the_floor_it_reported(api, shared, run):
    namespace, kubelet, _ = shared
    run("fenced")
    kubelet.end("fenced-e1", 75, report={"epoch": 1, "outcome": "fenced", "floor": {"epoch": 7}})
    wait("the next driver runs", lambda: kubelet.runs("fenced-e8"))
    status = api.status(namespace, "fenced")
    assert (status["lastExit"]["reason"], status.get("countedAttempts", 0)) == ("Fenced", 0)
    kubelet.settle("fenced-e8")


def test_a_permanent_failure_ends_the_session(api, shared, run):
    _, kubelet, _ = shared
    run("permanent")
    kubelet.end("permanent-e1", 78, report={"epoch": 1, "outcome": "failed", "reason": "MissingCapability"})
    wait("it failed", lambda: condition(api, shared, "permanent", "Succeeded") == ("False", "PermanentFailure"))
    assert condition(api, shared, "permanent", "Finished") == ("True", "PermanentFailure")


def test_crashes_in_a_row_exhaust_the_attempts(api, shared, run):
    namespace, kubelet, _ = shared
    run("exhausted", retry={"maxAttempts": 2, "initialSeconds": 1, "maxSeconds": 1})
    kubelet.end("exhausted-e1", 1)
    wait("the next driver runs", lambda: kubelet.runs("exhausted-e2"))
    kubelet.end("exhausted-e2", 1)
    wait("it failed", lambda: condition(api, shared, "exhausted", "Succeeded") == ("False", "AttemptsExhausted"))
    api.patch(namespace, "durablesessions", "exhausted", {"spec": {"retryToken": "again"}})
    wait("it goes on under the next epoch", lambda: kubelet.runs("exhausted-e3"))
    kubelet.settle("exhausted-e3")


def test_exit_0_without_a_report_proves_nothing_when_the_pod_was_disturbed(api, shared, run):
    namespace, kubelet, _ = shared
    run("noreport")
    target = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "TerminationByKubelet",
        "lastTransitionTime": now(),
    }
    kubelet.end("noreport-e1", 0, conditions=[target])
    wait("it is driven again", lambda: kubelet.runs("noreport-e2"))
    assert api.status(namespace, "noreport")["lastExit"]["reason"] == "NoReport"
    kubelet.settle("noreport-e2")


def test_a_driver_deleted_by_force_is_followed_and_not_counted(api, shared, run):
    namespace, kubelet, _ = shared
    run("forced")
    wait("its uid is recorded", lambda: api.status(namespace, "forced").get("driver", {}).get("uid"))
    kubelet.remove("forced-e1")
    wait("the next driver runs", lambda: kubelet.runs("forced-e2"))
    status = api.status(namespace, "forced")
    assert status["lastExit"]["reason"] in ("Deleted", "Vanished"), "whether its deletion was seen is a matter of luck"
    assert not status["lastExit"].get("counted", False)
    kubelet.settle("forced-e2")


def test_a_lost_space_is_placed_again_as_the_next_generation(api, shared, run):
    namespace, kubelet, _ = shared
    run("again")
    kubelet.remove("again-g1")
    wait("the next generation is ready", lambda: kubelet.runs("again-g2"))
    report = {"epoch": 1, "outcome": "halted", "reason": "SpaceUnreachable"}
    kubelet.end("again-e1", 1, report=report)
    wait("the next driver runs", lambda: kubelet.runs("again-e2"))
    status = api.status(namespace, "again")
    assert status["space"]["generation"] == 2
    assert (status["lastExit"]["reason"], status.get("countedAttempts", 0)) == ("SpaceLost", 0)
    environment = {v.name: v.value for v in api.pods(namespace)["again-e2"].spec.containers[0].env}
    assert environment["DURABLE_SPACE_GENERATION"] == "2"
    kubelet.settle("again-e2")


def test_two_sessions_share_a_space_one_after_the_other(api, shared):
    namespace, kubelet, _ = shared
    api.make(namespace, "durablespaces", "common", {})
    refers = {**spec(), "space": None, "spaceRef": {"name": "common"}}
    api.make(namespace, "durablesessions", "first", refers)
    wait("the first drives", lambda: kubelet.runs("first-e1"))
    api.make(namespace, "durablesessions", "second", refers)
    wait("the second waits", lambda: condition(api, shared, "second", "LeaseHeld") == ("False", "HeldBy"))
    kubelet.settle("first-e1")
    driver = wait("the second drives", lambda: next((p for p in kubelet.seen if p.startswith("second-e")), None))
    status = api.status(namespace, "second")
    assert status["leaseToken"] == 2
    assert status["epoch"] > api.status(namespace, "first")["epoch"]
    wait("it runs", lambda: kubelet.runs(driver))
    kubelet.settle(driver)


def test_a_deleted_session_takes_its_pods_along_and_its_namesake_starts_anew(api, shared, run):
    namespace, kubelet, _ = shared
    run("gone")
    kubelet.keeps.add("gone-e1")  # it ends slowly
    api.delete(namespace, "durablesessions", "gone")
    wait("its driver is being deleted", lambda: api.pods(namespace)["gone-e1"].metadata.deletion_timestamp)
    api.make(namespace, "durablesessions", "gone", spec())
    wait("the namesake is seen", lambda: api.status(namespace, "gone").get("conditions"))
    (former,) = kubelet.seen["gone-e1"]
    kubelet.keeps.discard("gone-e1")

    def driver():
        uid = api.status(namespace, "gone").get("driver", {}).get("uid")
        return uid and uid != former and api.status(namespace, "gone")["driver"]["pod"]

    name = wait("the namesake has a driver of its own", driver, 30)
    wait("it runs", lambda: kubelet.runs(name))
    kubelet.settle(name)
    wait("it succeeded", lambda: condition(api, shared, "gone", "Succeeded") == ("True", "Completed"))


def test_what_keeps_a_session_from_starting_is_in_a_condition(api, shared):
    namespace, _, _ = shared
    script = {"configMapKeyRef": {"name": "absent", "key": "script.yaml"}}
    agent = {"model": {"provider": "scripted"}, "scriptFrom": script}
    api.make(namespace, "durablesessions", "blocked", spec(agent=agent))
    wait("it says so", lambda: condition(api, shared, "blocked", "Ready") == ("False", "ConfigError"))
    found = api.status(namespace, "blocked")["conditions"]
    message = next(c["message"] for c in found if c["type"] == "Ready")
    assert "absent" in message
    assert "create it" in message


def test_a_node_that_is_not_heard_of_is_waited_for_before_its_driver_is_replaced(api, shared, run):
    namespace, kubelet, _ = shared
    run("silent", unreachableSeconds=10)
    wait("it is driving", lambda: condition(api, shared, "silent", "Ready") == ("True", "Driving"))
    api.node_ready("Unknown")
    try:
        wait("the node's silence is shown", lambda: condition(api, shared, "silent", "Ready")[1] == "NodeUnreachable")
        assert api.status(namespace, "silent")["epoch"] == 1
    finally:
        api.node_ready("True")
    wait("it drives as before", lambda: condition(api, shared, "silent", "Ready") == ("True", "Driving"))
    kubelet.settle("silent-e1")
    wait("it succeeded", lambda: condition(api, shared, "silent", "Succeeded") == ("True", "Completed"))
    assert api.status(namespace, "silent")["epoch"] == 1


def test_a_session_whose_data_goes_with_it_leaves_no_claim(api, shared):
    namespace, kubelet, _ = shared
    api.make(namespace, "durablesessions", "clean", spec(deletionPolicy="Delete"))
    wait("its driver runs", lambda: kubelet.runs("clean-e1"), 30)
    assert api.core.read_namespaced_persistent_volume_claim("clean-log", namespace)
    assert api.get(namespace, "durablesessions", "clean")["metadata"]["finalizers"] == ["durablesessions.dev/cleanup"]
    api.delete(namespace, "durablesessions", "clean")
    wait("the session is gone", lambda: api.get(namespace, "durablesessions", "clean") is None)
    for claim in api.core.list_namespaced_persistent_volume_claim(namespace).items:
        assert claim.metadata.name != "clean-log" or claim.metadata.deletion_timestamp is not None
