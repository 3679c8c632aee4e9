"""The network of a cluster: one namespace with one bridge, and addresses for nodes and pods on it.

Nothing leaves the namespace: it has no link to the host, so no test can send traffic anywhere else. It is entered with
`nsenter --net`, because `ip netns exec` mounts a fresh /sys, in which the kubelet finds no cgroups.
"""

from collections.abc import Sequence
from pathlib import Path

from durable_testbed.process import call

BRIDGE = "node0"
RANGE = "10.250.0.0/16"
GATEWAY = "10.250.0.1"  # the API server and the name server listen on it
SERVICES = "10.96.0.0/16"
SERVICE_API = "10.96.0.1"


def node_address(node: str) -> str:
    """The address of `n1`, `n2`, ..."""
    return f"10.250.0.{10 + int(node[1:])}"


def pod_range(node: str) -> str:
    """The first three bytes of the addresses of a node's pods."""
    return f"10.250.{10 + int(node[1:])}"


class Namespace:
    """A network namespace, by name."""

    def __init__(self, name: str):
        self.name = name
        self.file = Path("/run/netns") / name
        self.prefix = ["nsenter", f"--net={self.file}"]

    def create(self, nodes: Sequence[str]) -> None:
        """Make the namespace, its bridge and the addresses of `nodes`."""
        call("ip", "netns", "add", self.name)
        for command in (
            f"link add {BRIDGE} type bridge",
            f"addr add {GATEWAY}/16 dev {BRIDGE}",
            "link set lo up",
            f"link set {BRIDGE} up",
            *(f"addr add {node_address(node)}/16 dev {BRIDGE}" for node in nodes),
        ):
            call("ip", "-n", self.name, *command.split())
        # Without the second one the answer of a pod behind a Service goes past the address translation, straight over
        # the bridge, and its client throws it away.
        for knob in ("ipv4/ip_forward", "bridge/bridge-nf-call-iptables"):
            call(*self.prefix, "sh", "-c", f"echo 1 > /proc/sys/net/{knob}")

    def cut(self, node: str) -> None:
        """Drop all packets of a node and its pods, so that its peers see silence, as when a cable is pulled."""
        both = f"{{ {node_address(node)}, {pod_range(node)}.0/24 }}"
        chains = "\n".join(
            f"chain {hook} {{ type filter hook {hook} priority -300; ip saddr {both} drop; ip daddr {both} drop; }}"
            for hook in ("prerouting", "output")
        )
        call(*self.prefix, "nft", "-f", "-", stdin=f"table inet lost_{node} {{\n{chains}\n}}\n")

    def join(self, node: str) -> None:
        """Undo `cut`, if it was done."""
        call(*self.prefix, "nft", "delete", "table", "inet", f"lost_{node}", check=False)

    def remove(self) -> None:
        """Remove the namespace, if it is there."""
        if self.file.exists():
            call("ip", "netns", "del", self.name)
