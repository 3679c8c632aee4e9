"""`durable operator`: the command that the chart's Deployment runs. Heavy imports wait until it does."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from typing import Any

import click

from durable_operator.settings import Settings


@click.command("operator")
@click.option("--namespace", envvar="POD_NAMESPACE", required=True, help="The operator's own namespace.")
@click.option(
    "--driver-image",
    envvar="DURABLE_DRIVER_IMAGE",
    required=True,
    help="Drivers run it unless a session says otherwise.",
)
@click.option(
    "--space-image", envvar="DURABLE_SPACE_IMAGE", required=True, help="Spaces run it unless they say otherwise."
)
@click.option(
    "--watch-namespace",
    "watch_namespaces",
    multiple=True,
    help="Look after this namespace only; may be repeated. [default: all]",
)
@click.option("--kubeconfig", type=click.Path(exists=True, dir_okay=False), help="[default: the pod's service account]")
@click.option(
    "--install-name",
    default="durable-sessions",
    show_default=True,
    help="Names the Secret <name>-install, with the keys of this install.",
)
@click.option("--lease-name", help="The Lease that replicas compete for. [default: the install's name]")
@click.option(
    "--stream-service",
    default="durable-sessions-reports",
    show_default=True,
    help="Headless Service of the report streams; empty: none.",
)
@click.option("--stream-listen", default="0.0.0.0:7420", show_default=True)
@click.option("--http-listen", default="0.0.0.0:7421", show_default=True, help="/livez, /readyz, /metrics.")
@click.option(
    "--workers", type=click.IntRange(1, 256), default=8, show_default=True, help="Objects looked at at the same time."
)
@click.option(
    "--leader-seconds",
    type=click.FloatRange(2),
    default=15.0,
    show_default=True,
    help="A leader that is silent for so long is replaced.",
)
@click.option(
    "--relist-seconds",
    type=click.FloatRange(1),
    default=60.0,
    show_default=True,
    help="A deletion that no event told of is seen after this.",
)
@click.option(
    "--image-pull-secret", "image_pull_secrets", multiple=True, help="For drivers and Spaces; may be repeated."
)
@click.option(
    "--allow-privileged-templates",
    is_flag=True,
    help="Let podTemplates ask for host namespaces, host paths and privileges.",
)
@click.option("--cluster-reads/--no-cluster-reads", default=True, show_default=True, help="Whether nodes may be read.")
@click.option(
    "--network-policies/--no-network-policies", default=True, show_default=True, help="Whether to make those of Spaces."
)
@click.option(
    "--egress-deny",
    multiple=True,
    help="Address block that `egress: Public` leaves out besides private ones; may be repeated.",
)
@click.option("--log-level", type=click.Choice(["debug", "info", "warning"]), default="info", show_default=True)
def operator(log_level: str, leader_seconds: float, stream_listen: str, **given: Any) -> None:
    """Run the Kubernetes operator.

    \b
    Example, against the cluster of a kubeconfig:
      durable operator --kubeconfig ~/.kube/config --namespace durable-system \\
        --driver-image durable-driver:dev --space-image durable-space:dev
    """
    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("kopf").setLevel(logging.WARNING)
    from durable_operator.main import run_operator

    settings = Settings(
        identity=f"{os.environ.get('POD_NAME') or socket.gethostname()}_{secrets.token_hex(4)}",
        leader_seconds=leader_seconds,
        leader_renew_seconds=leader_seconds / 3,
        stream_listen=stream_listen,
        stream_port=int(stream_listen.rpartition(":")[2]),
        **given,  # click names its options as the fields are
    )
    asyncio.run(run_operator(settings))
