"""What the API server shows of a pod, as the coordinator's facts: ends, why one waits, and nodes that fell silent."""

import json

import pytest

from durable_coordinator.exits import Judging, judge_exit
from durable_operator.memory import Memory
from durable_operator.pod_facts import Heard, driver_end, driver_facts, node_unreachable_since, space_pod

LABELS = {
    "app.kubernetes.io/managed-by": "durable-sessions",
    "durablesessions.dev/role": "driver",
    "durablesessions.dev/session": "s",
    "durablesessions.dev/epoch": "3",
}
EARLIER, LATER = "2026-01-01T00:00:00Z", "2026-01-01T00:10:00Z"


def pod(*, phase="Running", state=None, conditions=(), meta=None, **status):
    containers = [{"name": "driver", "image": "d:1", "imageID": "", "state": state}] if state is not None else []
    return {
        "metadata": {
            "name": "s-e3",
            "namespace": "n",
            "uid": "u",
            "labels": LABELS,
            "creationTimestamp": EARLIER,
            **(meta or {}),
        },
        "spec": {"nodeName": "n1", "restartPolicy": "Never", "containers": [{"name": "driver", "image": "d:1"}]},
        "status": {"phase": phase, "containerStatuses": containers, "conditions": list(conditions), **status},
    }


def ended(code, *, reason="Error", message="", **more):
    end = {"exitCode": code, "reason": reason, "message": message, "startedAt": EARLIER, "finishedAt": LATER, **more}
    return {"terminated": end}


def disrupted(reason):
    return {"type": "DisruptionTarget", "status": "True", "reason": reason, "lastTransitionTime": LATER}


def judged(body, heard=None):
    end = driver_end(body, heard or Heard())
    judging = Judging(stopping=False, stall_seconds=120, reset_after_seconds=600, space_changed=False)
    return end and judge_exit(end, judging).reason


REPORT = json.dumps({"epoch": 3, "outcome": "settled"}) + '\n"answer"'
DELETING = {"deletionTimestamp": LATER, "deletionGracePeriodSeconds": 60}
ENDS = {
    "Completed": pod(phase="Succeeded", state=ended(0, reason="Completed", message=REPORT)),
    "NoReport": pod(phase="Failed", state=ended(0, reason="Completed")),
    "PermanentFailure": pod(phase="Failed", state=ended(78)),
    "Fenced": pod(phase="Failed", state=ended(75)),
    "Crashed": pod(phase="Failed", state=ended(1)),
    "OOMKilled": pod(phase="Failed", state=ended(137, reason="OOMKilled")),
    "Killed": pod(phase="Failed", state=ended(137)),
    "Evicted": pod(phase="Failed", reason="Evicted", state=ended(137), conditions=[disrupted("TerminationByKubelet")]),
    "NodeShutdown": pod(
        phase="Failed", reason="Terminated", state=ended(143), conditions=[disrupted("TerminationByKubelet")]
    ),
    "Preempted": pod(phase="Failed", state=ended(143), conditions=[disrupted("PreemptionByScheduler")]),
    "NodeLost": pod(phase="Failed", state=ended(137), conditions=[disrupted("DeletionByTaintManager")]),
    "EphemeralStorageExceeded": pod(phase="Failed", reason="Evicted", state=ended(137)),
    "NeverStarted": pod(phase="Failed", reason="OutOfcpu"),
    "InitFailed": pod(
        phase="Failed", initContainerStatuses=[{"name": "i", "state": {"terminated": {"exitCode": 1}}}], state={}
    ),
    "Deleted": pod(phase="Failed", state=ended(143), meta=DELETING),
}


@pytest.mark.parametrize("reason", ENDS)
def test_an_end_is_told_from_the_pod(reason):
    assert judged(ENDS[reason]) == reason


def test_a_driver_that_was_silent_before_it_was_killed_had_stalled():
    assert judged(ENDS["Killed"], Heard(beat_age_seconds=130.0)) == "Stalled"
    assert judged(ENDS["Killed"], Heard(beat_age_seconds=3.0)) == "Killed"


def test_a_driver_that_runs_or_waits_has_no_end():
    assert driver_end(pod(state={"running": {"startedAt": EARLIER}}), Heard()) is None
    assert driver_end(pod(phase="Pending", state={"waiting": {}}), Heard()) is None


def test_a_container_that_could_not_be_started_did_not_run():
    end = driver_end(pod(phase="Failed", state=ended(128, reason="StartError")), Heard())
    assert end.started is False


def test_a_pod_is_over_when_all_its_containers_are_though_its_phase_lags():
    body = pod(phase="Running", state=ended(0))
    assert driver_facts(body, heard=Heard()).over is True
    body["spec"]["containers"].append({"name": "sidecar"})
    body["status"]["containerStatuses"].append({"name": "sidecar", "state": {"running": {}}})
    assert driver_facts(body, heard=Heard()).over is False


@pytest.mark.parametrize(
    ("state", "conditions", "reason"),
    [
        ({"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}, (), "ImagePullFailed"),
        ({"waiting": {"reason": "CreateContainerConfigError"}}, (), "ConfigError"),
        ({"waiting": {"reason": "ContainerCreating"}}, (), "Starting"),
        (None, ({"type": "PodScheduled", "status": "False", "message": "0/2 nodes are available"},), "Unschedulable"),
        (
            None,
            ({"type": "PodScheduled", "status": "False", "message": "unbound immediate PersistentVolumeClaims"},),
            "VolumeUnavailable",
        ),
    ],
)
def test_why_a_driver_waits_is_told_in_the_words_of_who_knows(state, conditions, reason):
    assert (
        driver_facts(pod(phase="Pending", state=state, conditions=conditions), heard=Heard()).waiting_reason == reason
    )


def test_a_deletion_began_when_it_was_asked_for():
    deletion = driver_facts(pod(state={"running": {}}, meta=DELETING), heard=Heard()).deletion
    assert deletion.grace_seconds == 60
    assert driver_facts(pod(), heard=Heard()).deletion is None
    assert deletion.at == pytest.approx(driver_facts(pod(), heard=Heard()).created_at + 540)


@pytest.mark.parametrize(
    ("image_id", "pinned"),
    [("", "d:1"), ("registry/d@sha256:ab", "registry/d@sha256:ab"), ("docker-pullable://d@sha256:ab", "d@sha256:ab")],
)
def test_an_image_is_pinned_by_digest_where_the_runtime_names_its_repository(image_id, pinned):
    body = pod(state={"running": {"startedAt": EARLIER}})
    body["status"]["containerStatuses"][0]["imageID"] = image_id
    assert driver_facts(body, heard=Heard()).image == pinned


def node(status, taints=()):
    ready = {"type": "Ready", "status": status, "lastTransitionTime": EARLIER}
    return {"spec": {"taints": [{"key": key} for key in taints]}, "status": {"conditions": [ready]}}


def test_only_a_node_that_nobody_hears_of_is_unreachable():
    assert node_unreachable_since(node("True")) is None
    assert node_unreachable_since(node("False")) is None, "a node that says it is not ready still talks"
    assert node_unreachable_since(node("Unknown")) == driver_facts(pod(), heard=Heard()).created_at
    assert node_unreachable_since(node("True", ["node.kubernetes.io/out-of-service"])) == 0
    assert node_unreachable_since(None) == 0


def test_a_space_restarts_in_place_and_says_why():
    body = pod(state={"running": {"startedAt": LATER}})
    body["metadata"]["labels"] = {**LABELS, "durablesessions.dev/generation": "2"}
    killed = {"terminated": {"reason": "OOMKilled", "exitCode": 137, "finishedAt": EARLIER}}
    body["status"]["containerStatuses"][0] |= {"name": "space", "restartCount": 1, "lastState": killed, "ready": False}
    found = space_pod(body)
    assert (found.generation, found.restarts, found.last_reason, found.ready) == (2, 1, "OOMKilled", False)


def test_an_end_that_an_event_told_is_kept_until_the_session_has_passed_it():
    memory = Memory()
    key = memory.driver_event(ENDS["Crashed"], gone=True)
    assert key == ("n", "s")
    assert memory.session(key).ends["u"].code == 1
    memory.passed(key, 3)
    assert "u" in memory.session(key).ends
    memory.passed(key, 4)
    assert not memory.session(key).ends
    assert memory.session(key).epochs_seen == {"": 3}
