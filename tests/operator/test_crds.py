"""What the API server itself refuses: objects that make no sense, changes of what is immutable, and statuses that go back."""

import copy
from pathlib import Path

import pytest
import yaml
from kubernetes.client.exceptions import ApiException
from operator_bed import GROUP, VERSION, spec

CRDS = Path(__file__).parents[2] / "crds"
SESSION, SPACE, STORE = "durablesessions", "durablespaces", "checkpointstores"
KINDS = {SESSION: "DurableSession", SPACE: "DurableSpace", STORE: "CheckpointStore"}
AGENT = {"model": {"provider": "scripted"}}
KEY = {"configMapKeyRef": {"name": "m", "key": "k"}}
BOTH_KEYS = {**KEY, "secretKeyRef": {"name": "s", "key": "k"}}
CLAIM = {"resources": {"requests": {"storage": "1Gi"}}}
S3 = {"bucket": "bucket"}

# what is wrong -> (kind, spec, a part of the server's message)
BAD_SPECS = {
    "no input": (SESSION, spec(input=None), "exactly one of input and inputFrom"),
    "two inputs": (SESSION, spec(inputFrom=KEY), "exactly one of input and inputFrom"),
    "empty input": (SESSION, spec(input=""), "spec.input"),
    "input too long": (SESSION, spec(input="x" * 65537), "spec.input"),
    "input from nowhere": (SESSION, spec(input=None, inputFrom={}), "exactly one of configMapKeyRef and secretKeyRef"),
    "input from two keys": (SESSION, spec(input=None, inputFrom=BOTH_KEYS), "exactly one of configMapKeyRef"),
    "two agents": (SESSION, spec(agentFrom=KEY), "at most one of agent and agentFrom"),
    "model without provider": (SESSION, spec(agent={"model": {"name": "m"}}), "provider"),
    "a tool twice": (SESSION, spec(agent={**AGENT, "tools": ["bash", "bash"]}), "spec.agent.tools"),
    "no turns": (SESSION, spec(agent={**AGENT, "maxTurns": 0}), "maxTurns"),
    "cost as a word": (SESSION, spec(agent={**AGENT, "maxCost": "cheap"}), "maxCost"),
    "script from two keys": (SESSION, spec(agent={**AGENT, "scriptFrom": BOTH_KEYS}), "exactly one of configMapKeyRef"),
    "no space": (SESSION, spec(space=None), "exactly one of space and spaceRef"),
    "two spaces": (SESSION, spec(spaceRef={"name": "w"}), "exactly one of space and spaceRef"),
    "space of a long name": (SESSION, spec(space=None, spaceRef={"name": "w" * 48}), "spec.spaceRef.name"),
    "unknown mode": (SESSION, spec(mode="sometimes"), "spec.mode"),
    "limits of another mode": (
        SESSION,
        spec(mode="checkpoint", transactional={}),
        "have no meaning with mode checkpoint",
    ),
    "exclude outside": (SESSION, spec(transactional={"exclude": ["../x"]}), "exclude holds paths inside"),
    "exclude absolute": (SESSION, spec(transactional={"exclude": ["/x"]}), "exclude holds paths inside"),
    "log without a store": (SESSION, spec(log={"storage": "ObjectStore"}), "needs checkpointStoreRef"),
    "claim without storage": (SESSION, spec(log={"claim": CLAIM}), "log.claim needs log.storage"),
    "shared claim": (
        SESSION,
        spec(log={"storage": "PersistentVolumeClaim", "claim": {"accessModes": ["ReadWriteMany"]}}),
        "accessModes",
    ),
    "reserved variable": (SESSION, spec(driver={"env": [{"name": "CUA_X", "value": "1"}]}), "begin with CUA_"),
    "variable with two values": (
        SESSION,
        spec(driver={"env": [{"name": "X", "value": "1", "valueFrom": KEY}]}),
        "at most one of value and valueFrom",
    ),
    "variable twice": (SESSION, spec(driver={"env": [{"name": "X"}, {"name": "X"}]}), "Duplicate value"),
    "no grace": (SESSION, spec(driver={"terminationGracePeriodSeconds": 0}), "terminationGracePeriodSeconds"),
    "start too soon": (SESSION, spec(driver={"startSeconds": 29}), "startSeconds"),
    "first wait above the last": (SESSION, spec(retry={"initialSeconds": 10, "maxSeconds": 5}), "must not be above"),
    "no attempts": (SESSION, spec(retry={"maxAttempts": 0}), "maxAttempts"),
    "factor 0": (SESSION, spec(retry={"factor": 0}), "factor"),
    "factor of a half": (SESSION, spec(retry={"factor": 1.5}), "factor"),
    "stall too short": (SESSION, spec(stallSeconds=9), "stallSeconds"),
    "lease too short": (SESSION, spec(leaseSeconds=59), "leaseSeconds"),
    "unreachable too short": (SESSION, spec(unreachableSeconds=9), "unreachableSeconds"),
    "no deadline": (SESSION, spec(activeDeadlineSeconds=0), "activeDeadlineSeconds"),
    "unknown operating mode": (SESSION, spec(operatingMode="Paused"), "operatingMode"),
    "unknown suspend": (SESSION, spec(suspend={"space": "Keep"}), "suspend.space"),
    "unknown deletion policy": (SESSION, spec(deletionPolicy="Orphan"), "deletionPolicy"),
    "fork from nothing": (SESSION, spec(forkFrom={"session": "x"}), "entry"),
    "session id of another form": (SESSION, spec(sessionID="x"), "sessionID"),
    "gvisor without a class": (SPACE, {"kind": "gvisor"}, "need runtimeClassName"),
    "inline gvisor without a class": (SESSION, spec(space={"kind": "gvisor"}), "need runtimeClassName"),
    "unknown daemon": (SPACE, {"daemon": "Mine"}, "spec.daemon"),
    "two sources": (
        SPACE,
        {"source": {"configMapRef": {"name": "m"}, "git": {"url": "u"}}},
        "at most one of configMapRef and git",
    ),
    "relative workspace": (SPACE, {"workspace": "work"}, "spec.workspace"),
    "the root as workspace": (SPACE, {"workspace": "/"}, "spec.workspace"),
    "claim of an ephemeral one": (SPACE, {"storage": {"type": "Ephemeral", "claim": CLAIM}}, "belong together"),
    "claim without a claim": (SPACE, {"storage": {"type": "Claim"}}, "belong together"),
    "unknown egress": (SPACE, {"egress": "Some"}, "spec.egress"),
    "unknown kill": (SPACE, {"epochKill": "wish"}, "spec.epochKill"),
    "store of nothing": (STORE, {}, "exactly one of s3 and directory"),
    "store of two": (STORE, {"s3": S3, "directory": {"claimName": "c"}}, "exactly one of s3 and directory"),
    "bucket too short": (STORE, {"s3": {"bucket": "b"}}, "bucket"),
    "prefix with a slash": (STORE, {"s3": {**S3, "prefix": "/a"}}, "prefix"),
    "endpoint of no URL": (STORE, {"s3": {**S3, "endpoint": "s3.example"}}, "must be a URL"),
    "endpoint in the clear": (STORE, {"s3": {**S3, "endpoint": "http://s3.example"}}, "must be https"),
    "two identities": (
        STORE,
        {"s3": {**S3, "credentialsSecretRef": {"name": "s"}, "serviceAccountName": "a"}},
        "at most one of credentialsSecretRef and serviceAccountName",
    ),
    "unknown field": (SESSION, spec(colour="blue"), "unknown field"),
}
BAD_NAMES = ["a.b", "a" * 48]
# what is changed -> (kind, before, patch, a part of the message)
CHANGES = {
    "input": (SESSION, spec(), {"input": "other"}, "input is immutable"),
    "input to a reference": (SESSION, spec(), {"input": None, "inputFrom": KEY}, "immutable"),
    "agent": (SESSION, spec(), {"agent": {"instructions": "other"}}, "agent is immutable"),
    "agent removed": (SESSION, spec(), {"agent": None}, "agent is immutable"),
    "space": (SESSION, spec(), {"space": {"egress": "All"}}, "space is immutable"),
    "mode": (SESSION, spec(), {"mode": "checkpoint"}, "mode is immutable"),
    "transactional set": (SESSION, spec(), {"transactional": {}}, "transactional is immutable"),
    "log": (SESSION, spec(), {"log": {"storage": "PersistentVolumeClaim"}}, "log is immutable"),
    "store": (SESSION, spec(), {"checkpointStoreRef": {"name": "s"}}, "checkpointStoreRef is immutable"),
    "session id": (SESSION, spec(), {"sessionID": "0" * 8 + "-0000-0000-0000-" + "0" * 12}, "sessionID is immutable"),
    "workspace": (SPACE, {}, {"workspace": "/other"}, "workspace is immutable"),
    "kind": (SPACE, {}, {"kind": "gvisor", "runtimeClassName": "g"}, "kind is immutable"),
    "storage": (SPACE, {}, {"storage": {"sizeLimit": "1Gi"}}, "storage is immutable"),
    "kind of store": (STORE, {"s3": S3}, {"s3": None, "directory": {"claimName": "c"}}, "kind of a store is immutable"),
    "bucket": (STORE, {"s3": S3}, {"s3": {"bucket": "other"}}, "bucket and prefix are immutable"),
    "claim of a store": (
        STORE,
        {"directory": {"claimName": "c"}},
        {"directory": {"claimName": "d"}},
        "directory is immutable",
    ),
}
LIVE = {
    "attempts": (SESSION, spec(), {"retry": {"maxAttempts": 3}}),
    "suspended": (SESSION, spec(), {"operatingMode": "Suspended"}),
    "image": (SESSION, spec(), {"driver": {"image": "other:1"}}),
    "egress": (SPACE, {}, {"egress": "Public"}),
    "probe": (STORE, {"s3": S3}, {"probeSeconds": 60}),
}


def create(api, namespace, plural, name, wanted):
    wanted = {field: value for field, value in wanted.items() if value is not None}
    body = {"apiVersion": f"{GROUP}/{VERSION}", "kind": KINDS[plural], "metadata": {"name": name}, "spec": wanted}
    return api.custom.create_namespaced_custom_object(
        GROUP, VERSION, namespace, plural, body, field_validation="Strict"
    )


def refusal(call, *arguments):
    with pytest.raises(ApiException) as caught:
        call(*arguments)
    return caught.value.body


@pytest.fixture(scope="module")
def place(control_plane, api):
    """A namespace that no operator looks at."""
    return control_plane.kubectl.namespace("crds")


@pytest.mark.parametrize("case", BAD_SPECS)
def test_an_object_that_makes_no_sense_is_refused(api, place, case):
    plural, wanted, message = BAD_SPECS[case]
    assert message in refusal(create, api, place, plural, "bad", wanted)


@pytest.mark.parametrize("name", BAD_NAMES)
@pytest.mark.parametrize(("plural", "wanted"), [(SESSION, spec()), (SPACE, {}), (STORE, {"s3": S3})])
def test_a_name_that_makes_no_pod_or_host_name_is_refused(api, place, plural, wanted, name):
    assert "at most 47" in refusal(create, api, place, plural, name, wanted)


@pytest.mark.parametrize("case", CHANGES)
def test_what_is_immutable_stays(api, place, case):
    plural, before, patch, message = CHANGES[case]
    name = "change-" + case.replace(" ", "-")
    create(api, place, plural, name, before)
    assert message in refusal(api.patch, place, plural, name, {"spec": patch})


@pytest.mark.parametrize("case", LIVE)
def test_what_may_change_changes(api, place, case):
    plural, before, patch = LIVE[case]
    name = "live-" + case.replace(" ", "-")
    create(api, place, plural, name, before)
    api.patch(place, plural, name, {"spec": patch})


def test_defaults_are_filled_in_where_a_manifest_says_nothing(api, place):
    made = create(api, place, SESSION, "defaults", {"input": "Do it.", "space": {}})["spec"]
    assert made["retry"] == {
        "maxAttempts": 10,
        "initialSeconds": 2,
        "factor": 2,
        "maxSeconds": 300,
        "resetAfterSeconds": 600,
    }
    assert made["driver"] == {"terminationGracePeriodSeconds": 60, "startSeconds": 600, "historyLimit": 3}
    assert (made["mode"], made["stallSeconds"], made["operatingMode"]) == ("auto", 120, "Running")
    assert (made["suspend"], made["deletionPolicy"]) == ({"space": "Retain"}, "Retain")
    assert made["space"] == {
        "daemon": "Durable",
        "kind": "container",
        "workspace": "/workspace",
        "storage": {"type": "Ephemeral"},
        "egress": "None",
        "unreachableSeconds": 60,
        "epochKill": "auto",
        "keepSecondsAfterFinished": 0,
    }


def with_status(api, place, plural, name, wanted, status):
    body = create(api, place, plural, name, wanted)
    return api.put_status(place, plural, {**body, "status": status})


def changed(body, **fields):
    """The body with fields of its status changed; None removes one."""
    body = copy.deepcopy(body)
    status = {**body["status"], **fields}
    return {**body, "status": {field: value for field, value in status.items() if value is not None}}


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("epoch", 4, "an epoch only grows"),
        ("epoch", None, "an epoch only grows"),
        ("attempts", 1, "attempts only grow"),
        ("attempts", None, "attempts only grow"),
        ("sessionID", "other", "never changes"),
        ("sessionID", None, "never changes"),
    ],
)
def test_a_session_status_that_goes_back_is_refused(api, place, field, value, message):
    status = {"epoch": 5, "attempts": 3, "sessionID": "one"}
    body = with_status(api, place, SESSION, f"back-{field.lower()}-{value or 'gone'}", spec(), status)
    assert message in refusal(api.put_status, place, SESSION, changed(body, **{field: value}))


def test_a_status_that_is_removed_as_a_whole_is_refused(api, place):
    body = with_status(api, place, SESSION, "whole", spec(), {"epoch": 5})
    assert "an epoch only grows" in refusal(api.put_status, place, SESSION, {**body, "status": {}})


def test_success_is_final(api, place):
    done = {"type": "Succeeded", "status": "True", "reason": "Completed", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    body = with_status(api, place, SESSION, "final", spec(), {"conditions": [done]})
    worse = [{**done, "status": "False", "reason": "AttemptsExhausted"}]
    assert "success is final" in refusal(api.put_status, place, SESSION, changed(body, conditions=worse))
    assert "success is final" in refusal(api.put_status, place, SESSION, changed(body, conditions=[]))


HOLDER = {"namespace": "n", "name": "a", "uid": "a"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"epoch": 8}, "an epoch only grows"),
        ({"epoch": None}, "an epoch only grows"),
        ({"leaseToken": 2}, "a lease token only grows"),
        ({"leaseToken": None}, "a lease token only grows"),
        ({"generation": 0}, "a generation only grows"),
        ({"holder": {**HOLDER, "uid": "b"}}, "a new holder needs a greater lease token"),
        ({"leaseToken": 10, "epoch": 9}, "a new lease token comes with an epoch"),
    ],
)
def test_a_space_status_that_goes_back_is_refused(api, place, fields, message):
    name = "space-" + "-".join(f"{k}{v if not isinstance(v, dict) else ''}" for k, v in fields.items()).lower()
    body = with_status(api, place, SPACE, name, {}, {"epoch": 9, "leaseToken": 3, "generation": 1, "holder": HOLDER})
    assert message in refusal(api.put_status, place, SPACE, changed(body, **fields))


def test_a_lease_passes_on_with_a_greater_token_and_its_epoch(api, place):
    body = with_status(api, place, SPACE, "passes", {}, {"epoch": 3, "leaseToken": 3, "holder": HOLDER})
    freed = api.put_status(place, SPACE, changed(body, holder=None))
    taken = changed(freed, holder={**HOLDER, "uid": "b"}, leaseToken=4, epoch=4)
    assert api.put_status(place, SPACE, taken)["status"]["leaseToken"] == 4


def undescribed(schema, path):
    for name, field in schema.get("properties", {}).items():
        below = field.get("items", field)
        if not field.get("description"):
            yield f"{path}.{name}"
        yield from undescribed(below, f"{path}.{name}")


@pytest.mark.parametrize("kind", ["durablesession", "durablespace"])
def test_each_field_of_a_status_says_what_it_is(kind):
    crd = yaml.safe_load((CRDS / f"{kind}.yaml").read_text())
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    assert list(undescribed(schema["properties"]["status"], "status")) == []
