"""What a session shows that waits for a person: the cause, in the words of whoever knows it, and that it is blocked."""

import pytest
from operator_bed import spec, wait

from durable_driver import providers
from durable_operator import preflight

UNBOUND = "0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found"


@pytest.fixture
def told(api, shared):
    """(status, reason, message) of a session's condition."""

    def of(name, type):
        found = api.status(shared[0], name).get("conditions") or ()
        return next(
            ((c["status"], c["reason"], c.get("message", "")) for c in found if c["type"] == type), ("", "", "")
        )

    return of


def unscheduled(api, namespace, pod, message):
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    api.core.patch_namespaced_pod_status(pod, namespace, {"status": {"conditions": [condition]}})


def test_a_log_without_a_storage_class_tells_what_its_claims_binder_says(api, shared, told):
    namespace, kubelet, _ = shared
    kubelet.held.add("noclass-e1")
    api.make(namespace, "durablesessions", "noclass", spec())
    wait("its driver's pod is there", lambda: "noclass-e1" in api.pods(namespace))
    unscheduled(api, namespace, "noclass-e1", UNBOUND)
    wait("it is blocked", lambda: told("noclass", "Progressing")[:2] == ("False", "Blocked"), 40)
    status, reason, message = told("noclass", "Ready")
    assert (status, reason) == ("False", "VolumeUnavailable")
    assert "no persistent volumes available for this claim and no storage class is set" in message
    assert "noclass-log" in message, "which claim"
    assert "default" in message, "what to do"
    kubelet.held.discard("noclass-e1")
    wait("bound after all, it drives", lambda: told("noclass", "Ready")[0] == "True")
    kubelet.settle("noclass-e1")


def test_a_source_that_is_not_there_is_told_by_the_session_until_it_is(api, shared, told):
    namespace, kubelet, _ = shared
    source = {"configMapRef": {"name": "late"}}
    api.make(namespace, "durablesessions", "sourceless", spec(space={"source": source}))
    wait("it is blocked", lambda: told("sourceless", "Progressing")[:2] == ("False", "Blocked"))
    status, reason, message = told("sourceless", "Ready")
    assert (status, reason) == ("False", "WaitingForSpace")
    missing = f"spec.source.configMapRef: there is no ConfigMap late in namespace {namespace}: create it"
    assert message == f"DurableSpace sourceless: PodRejected: {missing}"
    assert told("sourceless", "SpaceReady") == ("False", "Placing", missing)
    assert not any(name.startswith("sourceless-") for name in api.pods(namespace))

    api.core.create_namespaced_config_map(namespace, {"metadata": {"name": "late"}, "data": {"a.txt": "a"}})
    wait("it drives", lambda: told("sourceless", "Ready")[0] == "True", 40)
    kubelet.settle("sourceless-e1")


def test_a_source_that_this_version_lacks_is_told_by_the_session(api, shared, told):
    source = {"git": {"url": "https://git.example/x.git", "ref": "main"}}
    api.make(shared[0], "durablesessions", "gitted", spec(space={"source": source}))
    wait("it is blocked", lambda: told("gitted", "Progressing")[:2] == ("False", "Blocked"))
    assert told("gitted", "Ready")[2].startswith("DurableSpace gitted: PodRejected: spec.source.git is not supported")


def waiting_for_its_image(api, namespace, pod, role):
    waits = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    container = {"name": role, "image": "", "imageID": "", "restartCount": 0, "ready": False, "state": waits}
    api.core.patch_namespaced_pod_status(pod, namespace, {"status": {"containerStatuses": [container]}})


def image_of(api, namespace, pod):
    return api.pods(namespace)[pod].spec.containers[0].image


def test_pods_that_never_started_follow_the_installations_images(api, namespace, kubelet, start_operator):
    """A wrong image in the chart's values is mended by `helm upgrade`, for a Space and then for a driver; others stay."""
    kubelet.held |= {"typo-g1", "typo-e1"}
    operator = start_operator("--space-image", "wrong:1", "--driver-image", "wrong:2")
    api.make(namespace, "durablesessions", "typo", spec())
    wait("the Space's pod is there", lambda: "typo-g1" in api.pods(namespace))
    waiting_for_its_image(api, namespace, "typo-g1", "space")
    wait("it is told", lambda: api.condition(namespace, "typo", "Progressing") == ("False", "Blocked"))
    operator.stop()

    operator = start_operator("--driver-image", "wrong:2")
    wait("the driver's pod is there", lambda: "typo-e1" in api.pods(namespace))
    assert image_of(api, namespace, "typo-g2") == "space:1"
    assert "typo-g1" not in api.pods(namespace)
    waiting_for_its_image(api, namespace, "typo-e1", "driver")
    wait("it is told", lambda: api.condition(namespace, "typo", "Ready") == ("False", "ImagePullFailed"))
    operator.stop()

    operator = start_operator()
    wait("the next driver runs", lambda: kubelet.runs("typo-e2"))
    assert image_of(api, namespace, "typo-e2") == "driver:1"
    status = api.status(namespace, "typo")
    assert (status["lastExit"]["reason"], status.get("countedAttempts", 0)) == ("NeverStarted", 0)
    operator.stop()

    start_operator("--space-image", "newer:1", "--driver-image", "newer:2")
    kubelet.end("typo-e2", 1)
    wait("the next driver runs", lambda: kubelet.runs("typo-e3"))
    assert image_of(api, namespace, "typo-g2") == "space:1", "what runs is never replaced for its image"
    kubelet.settle("typo-e3")
    wait("it succeeded", lambda: api.condition(namespace, "typo", "Succeeded") == ("True", "Completed"))


@pytest.mark.parametrize(
    ("name", "more", "message"),
    [
        ("provider", {"agent": {"model": {"provider": "chatgpt"}}}, "spec.agent.model.provider: there is no provider 'chatgpt'"),
        ("nomodel", {"agent": {"model": {"provider": "openai"}}}, "spec.agent.model.name: the provider openai needs the name"),
        ("nourl", {"agent": {"model": {"provider": "openai-compatible", "name": "m"}}}, "spec.agent.model.baseUrl: "),
        ("mode", {"mode": "checkpoint"}, "spec.mode checkpoint is not supported by this version"),
    ],
)  # fmt: skip
def test_what_no_drive_could_do_is_told_before_anything_is_made(api, shared, told, name, more, message):
    namespace, _, _ = shared
    api.make(namespace, "durablesessions", name, spec(**more))
    wait("it is blocked", lambda: told(name, "Progressing")[:2] == ("False", "Blocked"))
    status, reason, text = told(name, "Ready")
    assert (status, reason) == ("False", "ConfigError")
    assert text.startswith(message)
    assert api.get(namespace, "durablespaces", name) is None
    assert not any(pod.startswith(f"{name}-") for pod in api.pods(namespace))
    assert not any(
        c.metadata.name == f"{name}-log" for c in api.core.list_namespaced_persistent_volume_claim(namespace).items
    )


def test_a_driver_of_ones_own_may_know_other_models(api, shared):
    namespace, kubelet, _ = shared
    own = {"agent": {"model": {"provider": "chatgpt"}}, "driver": {"image": "mine:1"}}
    api.make(namespace, "durablesessions", "ownimage", spec(**own))
    wait("its driver runs", lambda: kubelet.runs("ownimage-e1"), 30)
    kubelet.settle("ownimage-e1")


def test_the_operator_knows_the_drivers_providers():
    assert preflight.PROVIDERS == providers.PROVIDERS
