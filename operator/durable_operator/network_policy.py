"""NetworkPolicies of Spaces: one per namespace and egress class, made before the first pod of that class (rule 40).

They are depth, not the boundary: token and TLS are. Policies only add up, and a network that does not enforce them changes
nothing about what a session may do.
"""

from __future__ import annotations

from durable_operator import objects as o
from durable_operator.driver_pod import SPACE_PORT
from durable_operator.kube import ApiError, Json, Kube, Resource
from durable_operator.settings import Settings

POLICIES = Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
_NAMESPACE_LABEL = "kubernetes.io/metadata.name"
# What "Public" leaves out: private, carrier-grade NAT, loopback, link-local with the clouds' metadata, and Azure's.
_NOT_PUBLIC_4 = (
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "168.63.129.16/32",
)
_NOT_PUBLIC_6 = ("fc00::/7", "fe80::/10")


async def ensure_policy(kube: Kube, settings: Settings, namespace: str, egress: str) -> None:
    """Make the policy of this class, or put it right. Does nothing if the operator is told not to manage policies."""
    if not settings.network_policies:
        return
    wanted = build_policy(namespace, egress, settings)
    found = await kube.get(POLICIES, namespace, wanted["metadata"]["name"])
    try:
        if found is None:
            await kube.create(POLICIES, namespace, wanted)
        elif o.managed(found) and found["spec"] != wanted["spec"]:
            await kube.replace(POLICIES, {**found, "spec": wanted["spec"]})
    except ApiError as error:
        if error.reason not in ("AlreadyExists", "Conflict"):  # another Space's look was faster
            raise


def build_policy(namespace: str, egress: str, settings: Settings) -> Json:
    """Pure."""
    operator = {"namespaceSelector": {"matchLabels": {_NAMESPACE_LABEL: settings.namespace}}}
    drivers = {"podSelector": {"matchLabels": {o.ROLE: o.DRIVER}}}
    return {
        "metadata": {
            "name": f"durable-space-egress-{egress.lower()}",
            "namespace": namespace,
            "labels": {o.MANAGED_BY: o.MANAGER},
        },
        "spec": {
            "podSelector": {"matchLabels": {o.ROLE: o.SPACE_CONTAINER, o.EGRESS: egress}},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": [drivers, operator], "ports": [{"protocol": "TCP", "port": SPACE_PORT}]}],
            "egress": _egress(egress, settings.egress_deny),
        },
    }


def _egress(egress: str, deny: tuple[str, ...]) -> list[Json]:
    if egress == "All":
        return [{}]
    if egress == "None":
        return []
    four = [*_NOT_PUBLIC_4, *(block for block in deny if ":" not in block)]
    six = [*_NOT_PUBLIC_6, *(block for block in deny if ":" in block)]
    blocks = [{"ipBlock": {"cidr": "0.0.0.0/0", "except": four}}, {"ipBlock": {"cidr": "::/0", "except": six}}]
    dns = {"namespaceSelector": {"matchLabels": {_NAMESPACE_LABEL: "kube-system"}}}
    ports = [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")]
    return [{"to": blocks}, {"to": [dns], "ports": ports}]
