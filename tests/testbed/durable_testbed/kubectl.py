"""kubectl as a callable, and the few questions that the test bed itself asks of a cluster."""

import json
import subprocess
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from durable_testbed.errors import BedError
from durable_testbed.process import call, wait_for


class Kubectl:
    """Calls kubectl as cluster administrator; `prefix` is put before the command (to enter a namespace)."""

    def __init__(self, program: Path, kubeconfig: Path, prefix: Sequence[str] = ()):
        self._command = [*prefix, str(program), f"--kubeconfig={kubeconfig}"]

    def __call__(self, *args: str, input: str | None = None, check: bool = True, timeout_seconds: float = 120) -> str:
        """Run `kubectl ARGS` and give back its standard output; BedError with its error output if it fails."""
        return call(*self._command, *args, stdin=input, check=check, timeout_seconds=timeout_seconds)

    def run(
        self, *args: str, input: str | None = None, timeout_seconds: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """Run `kubectl ARGS`, whatever its exit status; for tests that expect a refusal."""
        command = [*self._command, *args]
        return subprocess.run(command, input=input, capture_output=True, text=True, timeout=timeout_seconds)

    def get(self, *args: str) -> Any:
        """The answer of `kubectl get ARGS`, parsed."""
        return json.loads(self("get", *args, "--output=json"))

    def ready(self) -> bool:
        """Whether the API server says that it is ready."""
        return self("get", "--raw=/readyz", "--request-timeout=2s", check=False) == "ok"

    def namespace(self, prefix: str = "test") -> str:
        """Make a namespace with a name of its own, in which pods can be made at once, and give back its name."""
        name = f"{prefix}-{uuid.uuid4().hex[:8]}"
        self("create", "namespace", name)
        self.wait_service_account(name)
        return name

    def wait_service_account(self, namespace: str) -> None:
        """Wait until the controller manager made a namespace's default service account: pods are refused before."""
        arguments = ("get", "serviceaccount", "default", f"--namespace={namespace}", "--output=name")
        wait_for(f"namespace {namespace} has a service account", 30, lambda: self(*arguments, check=False))

    def usable_nodes(self) -> set[str]:
        """Nodes that are Ready and without taints: for up to a second a Ready node is still tainted `not-ready`."""
        try:
            nodes = self.get("nodes")["items"]
        except BedError:
            return set()
        return {node["metadata"]["name"] for node in nodes if is_ready(node) and not node["spec"].get("taints")}


def is_ready(object_: Any) -> bool:
    """Whether an object's condition Ready is True."""
    conditions = object_.get("status", {}).get("conditions", ())
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
