"""The chart, as Helm renders it: without a cluster, for each choice that a person may make."""

import subprocess
from pathlib import Path

import pytest
import yaml

from durable_testbed import binaries, requirements
from durable_testbed.errors import MissingError

REPOSITORY = Path(__file__).parents[2]
CHART = REPOSITORY / "charts" / "durable-sessions"
IMAGES = ("--set=images.operator=o:1", "--set=images.driver=d:1", "--set=images.space=s:1")


@pytest.fixture(scope="session")
def helm():
    """Runs Helm; returns the finished process."""
    try:
        program = binaries.ensure(binaries.HELM) / "helm"
    except MissingError as problem:
        if requirements.in_ci():
            raise
        pytest.skip(str(problem))

    def run(*arguments):
        return subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, timeout=60)

    return run


@pytest.fixture(scope="session")
def render(helm):
    """The chart's objects, (kind, name, namespace) -> object."""

    def rendered(*arguments, release="durable", namespace="durable-system"):
        done = helm("template", release, CHART, f"--namespace={namespace}", *IMAGES, *arguments)
        assert done.returncode == 0, done.stderr
        objects = [each for each in yaml.safe_load_all(done.stdout) if each]
        metas = [each["metadata"] for each in objects]
        keys = [(each["kind"], meta["name"], meta.get("namespace")) for each, meta in zip(objects, metas, strict=True)]
        return dict(zip(keys, objects, strict=True))

    return rendered


def of_kind(objects, kind):
    return [each for (found, *_), each in objects.items() if found == kind]


def operator_container(objects):
    (deployment,) = of_kind(objects, "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return container


def test_the_chart_passes_helm_lint(helm):
    done = helm("lint", "--strict", CHART)
    assert done.returncode == 0, done.stdout


def test_it_ships_the_crds_of_the_repository():
    ours = {path.name: path.read_text() for path in (REPOSITORY / "crds").glob("*.yaml")}
    assert {path.name: path.read_text() for path in (CHART / "files" / "crds").glob("*.yaml")} == ours


def test_crds_are_rendered_as_they_are_and_stay_when_the_release_goes(render):
    rendered = {name: crd for (kind, name, _), crd in render().items() if kind == "CustomResourceDefinition"}
    for path in (REPOSITORY / "crds").glob("*.yaml"):
        source = yaml.safe_load(path.read_text())
        crd = rendered.pop(source["metadata"]["name"])
        assert crd["metadata"]["annotations"].pop("helm.sh/resource-policy") == "keep"
        assert crd == source
    assert not rendered


def test_crds_can_be_left_to_someone_else(render):
    assert not of_kind(render("--set=crds.install=false"), "CustomResourceDefinition")


def test_images_are_all_that_must_be_given(render):
    container = operator_container(render())
    assert container["image"] == "o:1"
    given = {variable["name"]: variable.get("value") for variable in container["env"]}
    assert (given["DURABLE_DRIVER_IMAGE"], given["DURABLE_SPACE_IMAGE"]) == ("d:1", "s:1")


def test_every_option_is_one_that_the_operator_knows(render):
    from durable_operator.cli import operator

    known = {name for parameter in operator.params for name in (*parameter.opts, *parameter.secondary_opts)}
    every = (
        *("--set=namespaces={a,b}", "--set=images.pullSecrets={p}", "--set=allowPrivilegedTemplates=true"),
        *(
            "--set=networkPolicy.managed=false",
            "--set=networkPolicy.deny={10.0.0.0/8}",
            "--set=rbac.clusterReads=false",
        ),
    )
    for arguments in ((), every):
        used = {argument.partition("=")[0] for argument in operator_container(render(*arguments))["args"]}
        assert used <= known, used - known


def test_the_operator_is_as_restricted_as_its_pods(render):
    (deployment,) = of_kind(render(), "Deployment")
    security = operator_container(render())["securityContext"]
    assert security["runAsNonRoot"] is True
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert "hostNetwork" not in deployment["spec"]["template"]["spec"]


def rules(objects, kind, suffix):
    (found,) = [each for each in of_kind(objects, kind) if each["metadata"]["name"].endswith(suffix)]
    return found["rules"]


def verbs(found, resource):
    return {verb for rule in found if resource in rule["resources"] for verb in rule["verbs"]}


def test_the_whole_cluster_is_served_by_a_cluster_role(render):
    found = rules(render(), "ClusterRole", "durable-system-durable-sessions")
    assert verbs(found, "pods") == {"get", "list", "watch", "create", "delete"}
    assert verbs(found, "secrets") == {"create"}, "no Secret of a user is ever read"
    assert not verbs(found, "nodes")


def test_a_list_of_namespaces_is_served_by_roles_alone(render):
    objects = render("--set=namespaces={team-a,team-b}")
    names = {role["metadata"]["namespace"] for role in of_kind(objects, "Role")}
    assert names == {"durable-system", "team-a", "team-b"}
    (reads,) = of_kind(objects, "ClusterRole")
    assert {resource for rule in reads["rules"] for resource in rule["resources"]} == {"nodes", "tokenreviews"}
    assert {"--watch-namespace=team-a", "--watch-namespace=team-b"} <= set(operator_container(objects)["args"])


def test_nothing_of_the_cluster_is_read_where_that_is_not_wanted(render):
    objects = render("--set=namespaces={team-a}", "--set=rbac.clusterReads=false")
    assert not of_kind(objects, "ClusterRole")
    assert "--no-cluster-reads" in operator_container(objects)["args"]


def test_its_own_secret_is_the_only_one_it_reads(render):
    found = rules(render(), "Role", "-own")
    (reading,) = [rule for rule in found if "secrets" in rule["resources"] and "get" in rule["verbs"]]
    assert reading["resourceNames"] == ["durable-sessions-install"]
    assert "--install-name=durable-sessions" in operator_container(render())["args"]


def test_two_releases_share_no_name(render):
    one, two = (render(release=release, namespace="n") for release in ("durable", "other"))
    cluster_wide = ("CustomResourceDefinition",)
    shared = {key for key in one.keys() & two.keys() if key[0] not in cluster_wide}
    assert not shared


def test_the_streams_are_found_at_each_replica(render):
    objects = render()
    service = objects[("Service", "durable-sessions-reports", "durable-system")]
    assert service["spec"]["clusterIP"] == "None"
    assert "--stream-service=durable-sessions-reports" in operator_container(objects)["args"]


def test_a_budget_keeps_one_replica_and_is_left_out_for_a_single_one(render):
    assert of_kind(render(), "PodDisruptionBudget")
    assert not of_kind(render("--set=replicas=1"), "PodDisruptionBudget")


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--set=replicas=nine", "/replicas"),
        ("--set=colour=blue", "colour"),
        ("--set=operator.leaderSeconds=1", "/operator/leaderSeconds"),
        ("--set=networkPolicy.deny={everything}", "/networkPolicy/deny"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused(helm, argument, message):
    done = helm("template", "durable", CHART, *IMAGES, argument)
    assert done.returncode != 0
    assert message in done.stderr


@pytest.mark.parametrize("name", ["operator", "driver", "space"])
def test_each_image_must_be_given(helm, name):
    others = [argument for argument in IMAGES if name not in argument]
    done = helm("template", "durable", CHART, *others)
    assert done.returncode != 0
    assert f"images.{name} is missing" in done.stderr
    assert f"--set images.{name}=" in done.stderr, "what to do"


def test_the_notes_tell_what_comes_next(helm):
    done = helm("install", "durable", CHART, "--dry-run=client", "--namespace=durable-system", *IMAGES)
    assert done.returncode == 0, done.stderr
    assert "kubectl wait --for=condition=Finished" in done.stdout
