"""The whole product on a real cluster: the example is driven to its end while everything it stands on is killed once.

Two sessions run the same script side by side, one left alone. What the killed one leaves must be what the other leaves.
"""

import json
import signal
import time
from pathlib import Path

import pytest
import yaml

from durable_base.errors import UsageError
from durable_harness.inspect import LogReader

REPOSITORY = Path(__file__).parents[2]
SYSTEM = "durable-system"
NAME = "fix-bug"
SLEEP = "sleep 20"  # instead of the example's: long enough for three faults in one command, on a busy machine too
DUMP = """
import hashlib, json, os, stat, sys
found = {}
for folder, folders, files in os.walk(sys.argv[1]):
    for name in folders + files:
        path = os.path.join(folder, name)
        info = os.lstat(path)
        kept = hashlib.sha256(open(path, "rb").read()).hexdigest() if stat.S_ISREG(info.st_mode) else ""
        found[os.path.relpath(path, sys.argv[1])] = [oct(info.st_mode), kept]
print(json.dumps(found))
"""


def wait(what, question, seconds=60.0):
    """Ask until the answer is true; fail after `seconds`."""
    until = time.monotonic() + seconds
    while True:
        answer = question()
        if answer:
            return answer
        assert time.monotonic() < until, f"not within {seconds} s: {what}"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def installed(cluster, images):
    """The chart, installed with nothing but the images."""
    values = [f"--set=images.{name}={reference}" for name, reference in images.items()]
    chart = str(REPOSITORY / "charts" / "durable-sessions")
    cluster.helm(
        *("install", "durable", chart, f"--namespace={SYSTEM}", "--create-namespace"),
        *("--wait", "--timeout=120s", *values),
    )
    yield cluster
    cluster.helm("uninstall", "durable", f"--namespace={SYSTEM}", "--wait", "--timeout=60s", check=False)


class Run:
    """One session of the example in a namespace of its own."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.namespace = cluster.kubectl.namespace("run")
        self.floors = []  # of the log, as they were seen to change

    def apply(self):
        """The example as it is, but for a longer command."""
        documents = []
        for file in sorted((REPOSITORY / "examples" / NAME).glob("*.yaml")):
            documents += [document for document in yaml.safe_load_all(file.read_text()) if document]
        for document in documents:
            if "script.yaml" in document.get("data", {}):
                changed = document["data"]["script.yaml"].replace("sleep 0.5", SLEEP)
                assert changed != document["data"]["script.yaml"]
                document["data"]["script.yaml"] = changed
        self.kubectl("apply", "--filename=-", input=yaml.safe_dump_all(documents))

    def kubectl(self, *args, **more):
        return self.cluster.kubectl(f"--namespace={self.namespace}", *args, **more)

    def session(self):
        return self.cluster.kubectl.get("dsess", NAME, f"--namespace={self.namespace}")

    def status(self):
        return self.session().get("status") or {}

    def condition(self, type):
        found = self.status().get("conditions") or ()
        return next((c for c in found if c["type"] == type), {})

    def space_pod(self):
        return f"{NAME}-g{self.cluster.kubectl.get('dspace', NAME, f'--namespace={self.namespace}')['status']['generation']}"

    def log(self):
        """The session's log, on the volume that its claim is bound to."""
        folder = self.cluster.volume(f"{NAME}-log", self.namespace)
        return LogReader.open(folder / self.status()["sessionID"] / "log.db")

    def command_runs(self):
        """The long command is in work: a call without a result in the log, and its process in the Space."""
        container = (self.space_pod(), "--container=space", "--", "pgrep", "-x", "sleep")
        if self.cluster.kubectl.run("exec", f"--namespace={self.namespace}", *container).returncode:
            return False
        with self.log() as log:
            self._note(log)
            return any(call.entry_id is None and call.name == "bash" for call in log.tool_calls())

    def drives(self, above):
        """The name of a driver above an epoch that runs and has claimed the log."""
        status = self.status()
        if status["epoch"] <= above or self.condition("Ready").get("reason") != "Driving":
            return ""
        try:
            opened = self.log()
        except UsageError:  # the first driver runs, and has not made it yet
            return ""
        with opened as log:
            self._note(log)
            return status["driver"]["pod"] if log.floor.epoch == status["epoch"] else ""

    def finished(self):
        if self.condition("Finished").get("status") != "True":
            return False
        with self.log() as log:
            self._note(log)
        return True

    def workspace(self):
        arguments = (self.space_pod(), "--container=space", "--", "python3", "-c", DUMP, "/workspace")
        return json.loads(self.kubectl("exec", *arguments))

    def _note(self, log):
        floor = log.floor.epoch
        if not self.floors or self.floors[-1] != floor:
            self.floors.append(floor)


def leader(cluster):
    """The name of the operator's pod that leads."""
    lease = cluster.kubectl.get("lease", "durable-sessions", f"--namespace={SYSTEM}")
    return lease["spec"]["holderIdentity"].rpartition("_")[0]


def metrics(cluster):
    """What the leader tells Prometheus: series -> value."""
    path = f"/api/v1/namespaces/{SYSTEM}/pods/{leader(cluster)}:7421/proxy/metrics"
    lines = cluster.kubectl("get", f"--raw={path}", check=False).splitlines()
    return dict(line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))


def restarts(cluster, run):
    """By reason."""
    mine = f'namespace="{run.namespace}"'
    found = {
        k: float(v) for k, v in metrics(cluster).items() if k.startswith("durable_session_restarts_total") and mine in k
    }
    return {key.split('reason="')[1].split('"')[0]: value for key, value in found.items()}


def story(run):
    """What can be said about a session that did not do what it should."""
    words = (("get", "dsess,dspace,pods,pvc", "-o", "wide"), ("get", "events"), ("get", "dsess,dspace", "-o", "yaml"))
    told = [run.kubectl(*each, check=False) for each in words]
    for pod in run.cluster.kubectl.get("pods", f"--namespace={run.namespace}")["items"]:
        name = pod["metadata"]["name"]
        told += [f"--- {name}", run.kubectl("logs", name, "--all-containers", "--tail=40", check=False)]
    selector = "--selector=app.kubernetes.io/component=operator"
    told.append(run.cluster.kubectl("logs", selector, f"--namespace={SYSTEM}", "--tail=60", "--prefix", check=False))
    return "\n".join(told)


@pytest.fixture
def runs(installed):
    """Two sessions of the example; what is known of them is told where the test fails."""
    return Run(installed), Run(installed)


@pytest.mark.timeout(420)
def test_killed_once_in_each_part_the_example_ends_as_if_it_had_not_been(installed, runs, tmp_path):
    calm, killed = runs
    try:
        kill_each_part(installed, calm, killed)
        compare(installed, calm, killed, tmp_path)
    except BaseException as error:
        error.add_note(story(killed))
        error.add_note(story(calm))
        raise


def kill_each_part(cluster, calm, killed):
    for run in (calm, killed):
        run.apply()
    wait(
        "the long command runs",
        lambda: killed.status().get("epoch") and killed.drives(0) and killed.command_runs(),
        120,
    )

    # The driver, by force: nothing of it has a chance to say goodbye.
    killed.kubectl("delete", "pod", killed.status()["driver"]["pod"], "--force", "--grace-period=0")
    wait("the next driver has the log", lambda: killed.drives(1), 60)
    wait("the metric tells of the restart", lambda: restarts(cluster, killed), 30)
    assert set(restarts(cluster, killed)) <= {"Deleted", "Vanished"}

    # The operator that leads.
    assert killed.command_runs(), "the command should have lived on, and be reattached"
    cluster.kill_container(leader(cluster), "operator", SYSTEM, signal.SIGKILL)

    # The Space, while nobody leads.
    assert killed.command_runs()
    epoch = killed.status()["epoch"]
    killed.kubectl("delete", "pod", killed.space_pod(), "--wait=false")
    wait("a driver works in the Space's next generation", lambda: killed.drives(epoch) and killed.command_runs(), 90)
    assert killed.status()["space"]["generation"] == 2

    for run in (calm, killed):
        wait("it ends", run.finished, 120)
        assert run.condition("Succeeded")["status"] == "True", run.condition("Succeeded")
    wait("the new leader tells of the restart it made", lambda: restarts(cluster, killed), 30)


def compare(cluster, calm, killed, tmp):
    assert calm.status()["epoch"] == 1
    assert killed.status()["answer"] == calm.status()["answer"] != ""
    for run in (calm, killed):
        with run.log() as log:
            calls = log.tool_calls()
            results = [entry for entry in log.entries() if entry.kind == "pi.tool-result"]
        assert len(calls) == len(results) == len({entry.data["task_id"] for entry in results}) > 8
        assert all(call.entry_id is not None for call in calls)
        assert [call.name for call in calls if call.is_error] == ["bash"], "the tests fail once, before the repair"
    assert killed.workspace() == calm.workspace()
    fetched = tmp / "fixed"
    pod = killed.kubectl("get", "dspace", NAME, "--output=jsonpath={.status.pod.name}")
    killed.kubectl("cp", "--container=space", f"{pod}:/workspace", str(fetched))
    assert "half_up(exact)" in (fetched / "calc.py").read_text(), "the repaired file, as the README fetches it"
    assert killed.floors == sorted(set(killed.floors)), "epochs in the log went back"
    assert killed.floors[-1] == killed.status()["epoch"] >= 3
    series = f'durable_session_epoch{{namespace="{killed.namespace}",session="{NAME}"}}'
    wait("the metric tells of the epoch", lambda: series in metrics(cluster), 30)
