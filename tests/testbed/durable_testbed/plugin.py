"""The test bed as pytest fixtures. `-p durable_testbed.plugin` brings them.

* `control_plane`: API server, etcd and controller manager on loopback.
* `cluster`: two nodes in a network namespace.
* `images`: the product's images, loaded in both nodes.

Each starts once per session, when a test first asks for it, and both can run at once. Where the machine lacks something,
the tests that need it are skipped with a line that says what and how to get it; with CI=true they fail. Programs and
images are built before the first test, so that no test's time limit counts what only a first run has to do.

With several workers (`-n`) each has a control plane and a cluster of its own.
"""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest

from durable_testbed import binaries, requirements
from durable_testbed import images as product_images
from durable_testbed.cluster import Cluster
from durable_testbed.control_plane import ControlPlane
from durable_testbed.errors import BedError, MissingError
from durable_testbed.requirements import Level

T = TypeVar("T")
BUILT = pytest.StashKey[product_images.Images]()
KEPT_LOGS = pytest.StashKey[list[str]]()


@pytest.fixture(scope="session")
def control_plane(request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """A control plane that this process can talk to, for the whole session."""
    plane = _or_skip(ControlPlane.start)
    yield plane
    _keep_logs(request, plane)
    plane.stop()


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster of two nodes, for the whole session."""
    running = _or_skip(Cluster.start)
    yield running
    _keep_logs(request, running)
    running.stop()


@pytest.fixture(scope="session")
def images(request: pytest.FixtureRequest, cluster: Cluster) -> dict[str, str]:
    """The references of the product's images (`operator`, `driver`, `space`), which every node has."""
    built = request.config.stash.get(BUILT, None) or _or_skip(product_images.build)
    cluster.load_image(built.archive)
    return dict(built.references)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build what the collected tests will need."""
    wanted = {name for item in session.items for name in getattr(item, "fixturenames", ())}
    wanted &= {"control_plane", "cluster", "images"}
    if not wanted or session.config.option.collectonly:
        return
    capture = session.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        try:
            _prepare(wanted, session.config.stash)
        except BedError:
            return  # the fixture meets it again, and tells


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["kept_logs"] = session.config.stash.get(KEPT_LOGS, [])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A worker has ended: what it kept is told by who started it."""
    kept = getattr(node, "workeroutput", {}).get("kept_logs", [])
    node.config.stash.setdefault(KEPT_LOGS, []).extend(kept)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say where the logs of a failed session are."""
    for folder in config.stash.get(KEPT_LOGS, []):
        terminalreporter.write_line(f"the logs of the test bed are in {folder}")


def _prepare(wanted: set[str], stash: pytest.Stash) -> None:
    if requirements.in_ci():
        requirements.ensure_packages()
    if "control_plane" in wanted:
        requirements.check(Level.CONTROL_PLANE)
        binaries.for_control_plane()
    if "cluster" in wanted:
        requirements.check(Level.CLUSTER)
        binaries.for_cluster()
    if "images" in wanted:
        stash[BUILT] = product_images.build()


def _or_skip(start: Callable[[], T]) -> T:
    try:
        return start()
    except MissingError as problem:
        reason = str(problem)
    if requirements.in_ci():
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def _keep_logs(request: pytest.FixtureRequest, running: ControlPlane | Cluster) -> None:
    if request.session.testsfailed and (folder := running.save_logs()):
        request.config.stash.setdefault(KEPT_LOGS, []).append(str(folder))
