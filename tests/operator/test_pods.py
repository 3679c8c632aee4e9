"""The pods that the operator makes, and what a user's template may add to them."""

import msgspec
import pytest
from cryptography import x509

from durable_coordinator.spec_common import PodTemplate
from durable_coordinator.spec_session import SessionSpec
from durable_coordinator.spec_space import SpaceSpec
from durable_operator import templates
from durable_operator.driver_pod import DriverPod, SpaceLink, build_claim, build_driver_pod, build_files
from durable_operator.secrets import new_install, space_secret, space_secret_name, space_tls_name
from durable_operator.space_pod import SpacePodWanted, build_space_pod
from durable_operator.templates import TemplateRefusedError

SESSION = {"metadata": {"name": "s", "namespace": "n", "uid": "11111111-0000-0000-0000-000000000000", "generation": 1}}
SPACE = {"metadata": {"name": "w", "namespace": "n", "uid": "22222222-0000-0000-0000-000000000000"}}


def spec(**fields):
    return msgspec.convert({"input": "Do it.", "space": {}, **fields}, SessionSpec)


def driver(**fields):
    given = {
        "session": SESSION,
        "spec": spec(),
        "session_id": "id",
        "name": "s-e3",
        "epoch": 3,
        "attempt": 2,
        "resume": True,
        "lease_token": 1,
        "image": "driver:1",
        "space": SpaceLink(name="w", uid=SPACE["metadata"]["uid"], generation=2, address="10.0.0.5", kind="container"),
        "files": "s-files-11111111",
        "claim": "s-log",
        "stream": "reports.system.svc:7420",
        "stream_name": "reports.system.svc",
    }
    return build_driver_pod(DriverPod(**{**given, **fields}))


def space(**fields):
    given = {
        "space": SPACE,
        "spec": SpaceSpec(),
        "name": "w-g2",
        "generation": 2,
        "epoch_floor": 7,
        "fill": True,
        "image": "space:1",
    }
    return build_space_pod(SpacePodWanted(**{**given, **fields}))


def environment(pod):
    return {variable["name"]: variable.get("value") for variable in pod["spec"]["containers"][0]["env"]}


def template(**pod_spec):
    return PodTemplate(spec=pod_spec)


def test_a_driver_runs_once_and_reaches_no_api():
    pod = driver()["spec"]
    assert pod["restartPolicy"] == "Never"
    assert pod["automountServiceAccountToken"] is False
    (projected,) = [v for v in pod["volumes"] if v["name"] == "durable-reports"]
    (token,) = projected["projected"]["sources"]
    assert token["serviceAccountToken"]["audience"] == "durable"


@pytest.mark.parametrize("pod", [driver(), space()], ids=["driver", "space"])
def test_a_lost_node_takes_its_pods_along_when_the_spec_says(pod):
    tolerated = {t["key"]: t["tolerationSeconds"] for t in pod["spec"]["tolerations"]}
    assert tolerated == {"node.kubernetes.io/unreachable": 60, "node.kubernetes.io/not-ready": 60}


def test_a_driver_is_told_its_epoch_its_space_and_where_its_log_is():
    told = environment(driver())
    assert (told["CUA_SESSION"], told["CUA_SESSION_EPOCH"], told["CUA_SESSION_RESUME"]) == ("s", "3", "1")
    assert told["CUA_SESSION_SPACE_ADDR"] == "10.0.0.5:7411"
    assert (told["DURABLE_SPACE_GENERATION"], told["CUA_SESSION_SPACE_LEASE"]) == ("2", "1")
    assert told["CUA_SESSION_STATE_DIR"].endswith("/id"), "a namesake's log is another folder of the same claim"
    assert told["DURABLE_SESSION_UID"] == "id"
    assert "DURABLE_RETRY_TOKEN" not in told
    assert environment(driver(spec=spec(retryToken="t-1")))["DURABLE_RETRY_TOKEN"] == "t-1"


def test_a_frozen_driver_is_killed_without_the_grace_that_it_cannot_use():
    container = driver(spec=spec(stallSeconds=60))["spec"]["containers"][0]
    assert container["livenessProbe"]["periodSeconds"] == 10
    assert container["livenessProbe"]["terminationGracePeriodSeconds"] == 1
    budget = container["startupProbe"]["periodSeconds"] * container["startupProbe"]["failureThreshold"]
    assert budget == 600


def test_files_come_from_where_the_spec_says():
    key = {"configMapKeyRef": {"name": "m", "key": "k"}}
    secret = {"secretKeyRef": {"name": "x", "key": "y"}}
    wanted = spec(input=None, inputFrom=secret, agent={"model": {"provider": "scripted"}, "scriptFrom": key})
    (files,) = [v["projected"] for v in driver(spec=wanted)["spec"]["volumes"] if v["name"] == "durable-files"]
    named = {item["path"]: kind for s in files["sources"] for kind in s for item in s[kind].get("items", ())}
    assert named == {"input": "secret", "script.yaml": "configMap"}


def test_inline_input_and_agent_travel_in_a_config_map_of_their_own():
    made = build_files(SESSION, spec(), "model: {}\n")
    assert made["data"] == {"input": "Do it.", "agent.yaml": "model: {}\n"}
    assert made["immutable"] is True
    assert (
        build_files(SESSION, spec(input=None, inputFrom={"configMapKeyRef": {"name": "m", "key": "k"}}), None) is None
    )


def test_a_variable_of_the_user_does_not_replace_one_of_ours():
    env = [{"name": "DURABLE_MODE", "value": "mine"}, {"name": "KEY", "value": "v"}]
    told = environment(driver(spec=spec(driver={"env": env})))
    assert (told["DURABLE_MODE"], told["KEY"]) == ("auto", "v")


def test_a_claim_asks_for_what_the_spec_says_and_for_a_default_otherwise():
    assert build_claim(SESSION, spec())["spec"] == {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
    }
    claim = {"accessModes": ["ReadWriteOncePod"], "storageClassName": "fast"}
    asked = build_claim(SESSION, spec(log={"storage": "PersistentVolumeClaim", "claim": claim}))["spec"]
    assert (list(asked["accessModes"]), asked["storageClassName"]) == (["ReadWriteOncePod"], "fast")


def test_a_space_survives_its_daemon_and_is_filled_once():
    pod = space(spec=msgspec.convert({"source": {"configMapRef": {"name": "p"}}}, SpaceSpec))
    assert pod["spec"]["restartPolicy"] == "Always"
    (seed,) = pod["spec"]["initContainers"]
    assert seed["command"][:3] == ["durable", "space", "seed"]
    (source,) = [volume for volume in pod["spec"]["volumes"] if volume["name"] == "durable-source"]
    assert source["configMap"]["defaultMode"] == 0o644, "what is filled in can be changed"
    container = pod["spec"]["containers"][0]
    assert "livenessProbe" not in container
    assert container["command"][container["command"].index("--epoch-floor") + 1] == "7"
    assert "initContainers" not in space(fill=False)["spec"]


def test_a_template_adds_and_our_fields_win():
    given = template(
        restartPolicy="Always",
        nodeSelector={"disk": "fast"},
        priorityClassName="low",
        containers=[
            {"name": "driver", "command": ["mine"], "env": [{"name": "CUA_SESSION", "value": "x"}], "tty": True},
            {"name": "sidecar", "image": "sidecar:1"},
        ],
        tolerations=[{"key": "gpu", "operator": "Exists"}],
    )
    pod = templates.apply(driver(), given, allow_privileged=False)["spec"]
    ours, sidecar = pod["containers"]
    assert (pod["restartPolicy"], pod["nodeSelector"]) == ("Never", {"disk": "fast"})
    assert (ours["command"], ours["tty"], sidecar["name"]) == (["durable", "driver"], True, "sidecar")
    assert [v["value"] for v in ours["env"] if v["name"] == "CUA_SESSION"] == ["s"]
    assert len(pod["tolerations"]) == 3


def test_a_template_cannot_take_our_labels():
    given = PodTemplate(metadata={"labels": {"durablesessions.dev/epoch": "9", "team": "a"}})
    labels = templates.apply(driver(), given, allow_privileged=False)["metadata"]["labels"]
    assert (labels["durablesessions.dev/epoch"], labels["team"]) == ("3", "a")


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (template(hostNetwork=True), "hostNetwork"),
        (template(hostPID=True), "hostPID"),
        (template(volumes=[{"name": "v", "hostPath": {"path": "/"}}]), "volumes[v].hostPath"),
        (template(volumes=[{"name": "durable-log", "emptyDir": {}}]), "durable-"),
        (template(containers=[{"name": "c", "securityContext": {"privileged": True}}]), "privileged"),
        (template(initContainers=[{"name": "c", "livenessProbe": {"httpGet": {"host": "h"}}}]), "livenessProbe: host"),
    ],
)
def test_a_template_that_leaves_the_sandbox_is_refused(given, named):
    with pytest.raises(TemplateRefusedError) as refused:
        templates.apply(driver(), given, allow_privileged=False)
    assert named in str(refused.value)


def test_privileges_are_handed_out_where_the_operator_was_told_to():
    pod = templates.apply(driver(), template(hostNetwork=True), allow_privileged=True)
    assert pod["spec"]["hostNetwork"] is True


def test_each_generation_has_a_token_and_a_name_of_its_own():
    install = new_install()
    tokens = {install.space_token("u", generation) for generation in (1, 2)} | {install.space_token("v", 1)}
    assert len(tokens) == 3
    assert install.space_token("u", 1) == install.space_token("u", 1)
    assert new_install().space_token("u", 1) not in tokens
    secret = space_secret(install, "n", "w", SPACE["metadata"]["uid"], 2)
    assert secret["metadata"]["name"] == space_secret_name("w", SPACE["metadata"]["uid"], 2) == "w-g2-22222222"
    assert secret["immutable"] is True
    assert space_tls_name("w", 2, "n") == "w-g2.n"


def test_a_certificate_is_good_for_its_name_and_signed_by_the_install():
    install = new_install()
    leaf = x509.load_pem_x509_certificate(install.leaf(("w-g2.n", "10.0.0.1")).certificate)
    ca = x509.load_pem_x509_certificate(install.ca_certificate)
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["w-g2.n"]
    leaf.verify_directly_issued_by(ca)
