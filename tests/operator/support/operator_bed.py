"""Real operator processes against a real API server; the kubelet, and the Space's daemon, are played here.

Without a node nothing runs: `Kubelet` binds pods to a Node object, shows their containers as running, and ends them as a test
says. A Space's daemon is a gRPC server of its own token and certificate that answers GetInfo, each on an address of its own.
"""

import base64
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar

import grpc
from kubernetes import client, config, watch
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from durable_protocol.durable.space.v1 import space_pb2, space_pb2_grpc

GROUP, VERSION = "durablesessions.dev", "v1alpha1"
SYSTEM = "durable-system"
NODE = "n1"
# Of this test process alone: another one may run on this machine at the same time.
_NETWORK = f"127.{os.getpid() >> 8 & 0x7F | 0x80}.{os.getpid() & 0xFF}"
_addresses = itertools.count(10)


def wait(what: str, question: Callable[[], object], seconds: float = 20.0) -> object:
    """Ask until the answer is true; fail after `seconds`."""
    until = time.monotonic() + seconds
    while True:
        answer = question()
        if answer:
            return answer
        assert time.monotonic() < until, f"not within {seconds} s: {what}"
        time.sleep(0.05)


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody has, all different."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


class Api:
    """The API server, for a test."""

    def __init__(self, kubeconfig: Path) -> None:
        made = config.new_client_from_config(str(kubeconfig))
        self.kubeconfig = kubeconfig
        self.core = client.CoreV1Api(made)
        self.custom = client.CustomObjectsApi(made)

    def make(self, namespace: str, plural: str, name: str, spec: dict) -> dict:
        kind = {"durablesessions": "DurableSession", "durablespaces": "DurableSpace"}[plural]
        body = {"apiVersion": f"{GROUP}/{VERSION}", "kind": kind, "metadata": {"name": name}, "spec": spec}
        return self.custom.create_namespaced_custom_object(GROUP, VERSION, namespace, plural, body)

    def get(self, namespace: str, plural: str, name: str) -> dict | None:
        try:
            return self.custom.get_namespaced_custom_object(GROUP, VERSION, namespace, plural, name)
        except ApiException as error:
            if error.status == 404:
                return None
            raise

    def status(self, namespace: str, name: str, plural: str = "durablesessions") -> dict:
        return (self.get(namespace, plural, name) or {}).get("status") or {}

    def put_status(self, namespace: str, plural: str, body: dict) -> dict:
        name = body["metadata"]["name"]
        return self.custom.replace_namespaced_custom_object_status(GROUP, VERSION, namespace, plural, name, body)

    def patch(self, namespace: str, plural: str, name: str, patch: dict) -> dict:
        return self.custom.patch_namespaced_custom_object(GROUP, VERSION, namespace, plural, name, patch)

    def delete(self, namespace: str, plural: str, name: str) -> None:
        self.custom.delete_namespaced_custom_object(GROUP, VERSION, namespace, plural, name)

    def condition(self, namespace: str, name: str, type: str) -> tuple[str, str]:
        found = self.status(namespace, name).get("conditions") or ()
        return next(((c["status"], c["reason"]) for c in found if c["type"] == type), ("", ""))

    def pods(self, namespace: str) -> dict[str, client.V1Pod]:
        return {pod.metadata.name: pod for pod in self.core.list_namespaced_pod(namespace).items}

    def node(self) -> None:
        """A Node object, ready, for pods to be bound to."""
        status = {
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "lastTransitionTime": now()}]
        }
        try:
            self.core.create_node({"metadata": {"name": NODE}})
        except ApiException as error:
            if error.status != 409:
                raise
        self.core.patch_node_status(NODE, {"status": status})

    def node_ready(self, value: str) -> None:
        ready = {
            "type": "Ready",
            "status": value,
            "reason": "Test",
            "lastTransitionTime": now(),
            "lastHeartbeatTime": now(),
        }
        self.core.patch_node_status(NODE, {"status": {"conditions": [ready]}})


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Daemon(space_pb2_grpc.SpaceServiceServicer):
    """A Space's daemon, as far as the operator asks it."""

    def __init__(self, token: str, generation: int) -> None:
        self.floor = 0
        self._token = token
        self._generation = generation

    def GetInfo(self, request, context):
        if dict(context.invocation_metadata()).get("authorization") != f"Bearer {self._token}":
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "a wrong token")
        floor = space_pb2.Floor(epoch=self.floor)
        return space_pb2.GetInfoResponse(
            name="test", instance_id=f"i{self._generation}", boot_id="b1", generation=self._generation, floor=floor
        )


class Kubelet:
    """One namespace's. Every pod that ever was is in `seen`: name -> uids."""

    def __init__(self, api: Api, namespace: str) -> None:
        self._api = api
        self._namespace = namespace
        self._stop = threading.Event()
        self._servers: dict[str, grpc.Server] = {}
        self._address: dict[str, str] = {}  # of a Space's daemon, by its pod's uid
        self._running: set[str] = set()
        self.daemons: dict[str, Daemon] = {}
        self.seen: dict[str, set[str]] = {}
        self.held: set[str] = set()  # pods that are not bound
        self.keeps: set[str] = set()  # pods that do not end when they are deleted
        self.epochs: dict[str, list[int]] = {}  # of each session, as they were seen to change
        self.problems: list[str] = []
        self._watcher = watch.Watch()
        self._threads = [threading.Thread(target=each, daemon=True) for each in (self._run, self._watch)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._watcher.stop()
        for thread in self._threads:
            thread.join(10)
        for server in self._servers.values():
            server.stop(0)

    def end(
        self, name: str, code: int, *, report: dict | None = None, answer: str = "", reason: str = "", **status
    ) -> None:
        """The driver's container ends. `status`: more fields of the pod's status."""
        message = json.dumps(report) + "\n" + json.dumps(answer) if report is not None else ""
        ended = {
            "exitCode": code,
            "reason": reason or ("Completed" if code == 0 else "Error"),
            "message": message,
            "startedAt": now(),
            "finishedAt": now(),
        }
        container = {**_container("driver"), "ready": False, "state": {"terminated": ended}}
        body = {"status": {"phase": "Succeeded" if code == 0 else "Failed", "containerStatuses": [container], **status}}
        self._api.core.patch_namespaced_pod_status(name, self._namespace, body)

    def settle(self, name: str, answer: str = "done") -> None:
        epoch = int(name.rpartition("-e")[2])
        self.end(name, 0, report={"session": "s", "epoch": epoch, "outcome": "settled", "entries": 3}, answer=answer)

    def remove(self, name: str) -> None:
        """The pod's object goes, at once."""
        self._api.core.delete_namespaced_pod(name, self._namespace, grace_period_seconds=0)

    def runs(self, name: str) -> bool:
        return name in self._running

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                for pod in self._api.core.list_namespaced_pod(self._namespace).items:
                    self._look(pod)
                self._look_at_epochs()
            except (ApiException, HTTPError) as error:
                if getattr(error, "status", 0) not in (404, 409):
                    self.problems.append(str(error)[:300])
            self._stop.wait(0.05)

    def _watch(self) -> None:
        """Miss no pod, however short its life: what a list shows is not all there was."""
        since = self._api.core.list_namespaced_pod(self._namespace).metadata.resource_version
        listing = self._api.core.list_namespaced_pod
        while not self._stop.is_set():
            with suppress(ApiException, HTTPError):  # a watch may end at any time; the next begins where it ended
                for event in self._watcher.stream(listing, self._namespace, resource_version=since, timeout_seconds=2):
                    meta = event["object"].metadata
                    since = meta.resource_version
                    self.seen.setdefault(meta.name, set()).add(meta.uid)

    def _look(self, pod: client.V1Pod) -> None:
        name, meta = pod.metadata.name, pod.metadata
        if name in self.held:
            return
        role = (meta.labels or {}).get("durablesessions.dev/role")
        if meta.deletion_timestamp is not None:
            self._delete(pod, role)
        elif pod.spec.node_name is None:
            target = client.V1ObjectReference(kind="Node", name=NODE, api_version="v1")
            binding = client.V1Binding(metadata=client.V1ObjectMeta(name=name), target=target)
            self._api.core.create_namespaced_binding(self._namespace, binding, _preload_content=False)
        elif pod.status.phase == "Pending":
            if role == "space":
                self._serve(pod)
            self._show_running(pod, role)

    def _show_running(self, pod: client.V1Pod, role: str) -> None:
        number = pod.metadata.uid
        container = {**_container(role), "ready": True, "state": {"running": {"startedAt": now()}}}
        address = self._address.get(number, "127.0.0.1") if role == "space" else "127.0.0.1"
        ready = [{"type": kind, "status": "True", "lastTransitionTime": now()} for kind in ("Ready", "PodScheduled")]
        status = {"phase": "Running", "podIP": address, "containerStatuses": [container], "conditions": ready}
        self._api.core.patch_namespaced_pod_status(pod.metadata.name, self._namespace, {"status": status})
        self._running.add(pod.metadata.name)

    def _delete(self, pod: client.V1Pod, role: str) -> None:
        name = pod.metadata.name
        if name in self.keeps:
            return
        if role == "driver" and pod.status.phase == "Running":
            self.end(name, 143)
        if name in self._servers:
            self._servers.pop(name).stop(0)
        self._running.discard(name)
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod.metadata.uid}}
        self._api.core.delete_namespaced_pod(name, self._namespace, body=options)

    def _serve(self, pod: client.V1Pod) -> None:
        """Start the daemon of this pod, with what its Secret holds."""
        name = pod.metadata.name
        if name in self._servers:
            return
        volume = next(v for v in pod.spec.volumes if v.secret is not None)
        data = self._api.core.read_namespaced_secret(volume.secret.secret_name, self._namespace).data
        token, certificate, key = (base64.b64decode(data[field]) for field in ("token", "tls.crt", "tls.key"))
        server = grpc.server(ThreadPoolExecutor(2))
        daemon = Daemon(token.decode(), int(name.rpartition("-g")[2]))
        space_pb2_grpc.add_SpaceServiceServicer_to_server(daemon, server)
        address = f"{_NETWORK}.{next(_addresses)}"
        server.add_secure_port(f"{address}:7411", grpc.ssl_server_credentials([(key, certificate)]))
        server.start()
        self._servers[name], self.daemons[name], self._address[pod.metadata.uid] = server, daemon, address

    def _look_at_epochs(self) -> None:
        found = self._api.custom.list_namespaced_custom_object(GROUP, VERSION, self._namespace, "durablesessions")
        for session in found["items"]:
            epoch = (session.get("status") or {}).get("epoch", 0)
            known = self.epochs.setdefault(session["metadata"]["name"], [])
            if epoch and (not known or known[-1] != epoch):
                known.append(epoch)


def _container(name: str) -> dict:
    return {"name": name, "image": f"{name}:1", "imageID": "", "restartCount": 0}


class OperatorProcess:
    """`durable operator` as a child process."""

    all: ClassVar[list["OperatorProcess"]] = []

    def __init__(self, api: Api, logs: Path, *options: str, crash: str = "") -> None:
        http, self.stream_port = free_ports(2)
        self.http = f"127.0.0.1:{http}"
        self.log = logs / f"operator-{http}.log"
        command = [
            *(sys.executable, "-c", "from durable_cli.main import main; main()", "operator"),
            *("--kubeconfig", str(api.kubeconfig)),
            *("--namespace", SYSTEM, "--driver-image", "driver:1", "--space-image", "space:1"),
            *("--http-listen", self.http, "--stream-listen", f"127.0.0.1:{self.stream_port}"),
            *("--leader-seconds", "3", "--relist-seconds", "2"),
            *options,
        ]
        environment = {**os.environ, "DURABLE_CRASH": crash}
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
        self.all.append(self)

    def died(self) -> bool:
        return self.process.poll() is not None

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""


@contextmanager
def operators(api: Api, logs: Path) -> Iterator[Callable[..., OperatorProcess]]:
    """Start operators; all are ended in the end."""
    started: list[OperatorProcess] = []

    def start(*options: str, crash: str = "") -> OperatorProcess:
        started.append(OperatorProcess(api, logs, *options, crash=crash))
        return started[-1]

    try:
        yield start
    finally:
        for process in started:
            process.stop()


def spec(**more: object) -> dict:
    """The shortest session, with quick retries."""
    return {
        "input": "Do it.",
        "agent": {"model": {"provider": "scripted"}},
        "space": {},
        "retry": {"initialSeconds": 1, "maxSeconds": 1},
        **more,
    }
