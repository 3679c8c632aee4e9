"""A control plane with the CRDs, and operators on it."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "support"))

from operator_bed import SYSTEM, Api, Kubelet, OperatorProcess, operators

CRDS = Path(__file__).parents[2] / "crds"


@pytest.fixture(scope="session")
def api(control_plane):
    """The API server, with our CRDs served."""
    control_plane.kubectl("apply", "--validate=strict", "--filename", str(CRDS))
    control_plane.kubectl("wait", "--for=condition=Established", "--filename", str(CRDS))
    control_plane.kubectl("create", "namespace", SYSTEM, check=False)
    made = Api(control_plane.kubeconfig)
    made.node()
    return made


@pytest.fixture
def namespace(control_plane, api):
    """A fresh one."""
    return control_plane.kubectl.namespace()


@pytest.fixture
def kubelet(api, namespace):
    """Plays the kubelet of `namespace`."""
    player = Kubelet(api, namespace)
    player.start()
    yield player
    player.stop()


@pytest.fixture
def start_operator(api, namespace, tmp_path):
    """Starts an operator of `namespace` alone; more options and a crash point may be given."""
    with operators(api, tmp_path) as start:

        def started(*options, crash="", name="one"):
            own = ("--watch-namespace", namespace, "--install-name", namespace, "--lease-name", f"{namespace}-{name}")
            return start(*own, *options, crash=crash)

        yield started


@pytest.fixture(scope="module")
def shared(control_plane, api, tmp_path_factory):
    """(namespace, its kubelet, an operator of it): for tests that give their sessions names of their own."""
    space = control_plane.kubectl.namespace("shared")
    control_plane.kubectl("label", "namespace", space, "pod-security.kubernetes.io/enforce=restricted")
    player = Kubelet(api, space)
    player.start()
    with operators(api, tmp_path_factory.mktemp("shared")) as start:
        process = start("--watch-namespace", space, "--install-name", space)
        yield space, player, process
    player.stop()
    assert not player.problems, player.problems


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item):
    """Show what the operators wrote, where a test failed."""
    outcome = yield
    report = outcome.get_result()
    if report.failed:
        for process in OperatorProcess.all:
            if not process.died() or process.text():
                report.sections.append((f"operator {process.http}", process.text()[-6000:]))
