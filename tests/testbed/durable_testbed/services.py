"""What a cluster has beside the control plane: the scheduler, and what gives Services their addresses and names."""

import json
from pathlib import Path

from durable_testbed import network
from durable_testbed.binaries import Binaries
from durable_testbed.control_plane import FAST_CLIENT
from durable_testbed.process import Daemons

COREFILE = """cluster.local:53 in-addr.arpa:53 {{
  bind {address}
  errors
  cache 5
  kubernetes cluster.local in-addr.arpa {{
    kubeconfig {kubeconfig}
    ttl 2
  }}
}}
.:53 {{  # a block of its own: within one, `template` answers before `kubernetes`
  bind {address}
  template ANY ANY {{
    rcode NXDOMAIN
  }}
}}
"""


def start_scheduler(daemons: Daemons, programs: Binaries, kubeconfig: Path, cgroup: str) -> None:
    """Start the scheduler."""
    daemons.start(
        "kube-scheduler",
        programs["kube-scheduler"],
        f"--kubeconfig={kubeconfig}",
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
        *FAST_CLIENT,
        cgroup=cgroup,
    )


def start_proxy(daemons: Daemons, programs: Binaries, kubeconfig: Path, cgroup: str) -> None:
    """Start kube-proxy; one does for all nodes, because they share the network namespace."""
    config = daemons.folder / "kube-proxy.yaml"
    content = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clientConnection": {"kubeconfig": str(kubeconfig)},
        "hostnameOverride": "n1",
        "clusterCIDR": network.RANGE,
        "conntrack": {"maxPerCore": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
    }
    config.write_text(json.dumps(content))
    daemons.start("kube-proxy", programs["kube-proxy"], f"--config={config}", cgroup=cgroup)


def start_name_server(daemons: Daemons, programs: Binaries, kubeconfig: Path, cgroup: str) -> None:
    """Start CoreDNS, which knows the cluster's names and no others: nothing is asked of a server outside."""
    config = daemons.folder / "Corefile"
    config.write_text(COREFILE.format(address=network.GATEWAY, kubeconfig=kubeconfig))
    daemons.start("coredns", programs["coredns"], "-conf", config, cgroup=cgroup)
