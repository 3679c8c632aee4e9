"""What an operator process is told at its start. Everything else it reads from the API server."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Seconds unless said otherwise."""

    namespace: str  # the operator's own: its Lease, its install Secret
    identity: str  # of this replica; unique among all that ever ran
    driver_image: str
    space_image: str
    watch_namespaces: tuple[str, ...] = ()  # empty: all
    kubeconfig: str | None = None  # None: the pod's service account
    install_name: str = (
        "durable-sessions"  # names the Secret `<name>-install`, and the Lease if that has no name of its own
    )
    lease_name: str | None = None
    stream_service: str = (
        "durable-sessions-reports"  # headless Service in front of the report streams; empty: no streams
    )
    stream_port: int = 7420
    stream_listen: str = "0.0.0.0:7420"
    http_listen: str = "0.0.0.0:7421"
    workers: int = 8
    leader_seconds: float = 15.0  # a leader that did not renew for so long is replaced
    leader_renew_seconds: float = 5.0
    relist_seconds: float = 60.0  # how long a deletion that no event told of stays unseen (rule 8)
    resync_seconds: float = 300.0  # every unfinished session is looked at this often at least
    allow_privileged_templates: bool = False
    cluster_reads: bool = True  # nodes and TokenReviews may be read (rule 6)
    image_pull_secrets: tuple[str, ...] = ()
    network_policies: bool = True  # the operator makes those of Spaces
    egress_deny: tuple[str, ...] = ()  # address blocks that `egress: Public` leaves out besides private ones

    @property
    def stream_name(self) -> str:
        """What the certificate of the report streams proves."""
        return f"{self.stream_service}.{self.namespace}.svc"

    @property
    def stream_address(self) -> str:
        """What drivers are told, empty for none. The name without a cluster domain resolves in every cluster."""
        return f"{self.stream_name}:{self.stream_port}" if self.stream_service else ""
