"""The test bed by hand: `python -m durable_testbed COMMAND`; `up` starts a cluster that stays until `down`."""

import argparse
import json
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

from durable_testbed import binaries, images, paths, requirements, teardown
from durable_testbed.cluster import LOSS_SECONDS, NODES, Cluster
from durable_testbed.errors import BedError
from durable_testbed.process import Daemons
from durable_testbed.requirements import Level
from durable_testbed.run_folder import RunFolder

NAME = "cluster"


def main(argv: list[str] | None = None) -> int:
    """Run a command; gives back the exit status."""
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.act(arguments) or 0)
    except BedError as problem:
        print(f"durable_testbed: {problem}", file=sys.stderr)
        return 1


def up(arguments: argparse.Namespace) -> None:
    """Start a cluster and say how to use it."""
    built = images.build() if arguments.images else None
    teardown.clean_abandoned()
    cluster = Cluster.named(arguments.name)
    cluster.up(nodes=arguments.nodes, loss_seconds=arguments.loss_seconds)
    if built:
        cluster.load_image(built.archive)
    cluster.keep()
    option = [] if arguments.name == NAME else ["--name", arguments.name]
    # As they are, from any folder: neither the package nor this Python has to be on a path.
    bed = shlex.join(["env", f"PYTHONPATH={paths.HERE}", sys.executable, "-m", "durable_testbed", *option])
    print(
        "It has a network of its own; from outside, its KUBECONFIG leads nowhere. A shell inside, with KUBECONFIG set and"
    )
    print("kubectl, helm and kubectl-durable on the PATH:")
    print(f"  {bed} exec")
    print("One command inside:")
    print(f"  {bed} kubectl get pods --all-namespaces")
    if built:
        print("Install the chart with the images that its nodes have:")
        print(f"  {bed} helm {shlex.join(_install(built))}")
    print("End it:")
    print(f"  {bed} down")


def _install(built: images.Images) -> list[str]:
    """Helm's arguments."""
    chart = str(paths.REPOSITORY / "charts" / "durable-sessions")
    values = [f"--set=images.{name}={reference}" for name, reference in built.references.items()]
    return ["install", "durable", chart, "--namespace=durable-system", "--create-namespace", "--wait", *values]


def down(arguments: argparse.Namespace) -> None:
    """End a cluster, whatever state it is in, and what killed runs left."""
    teardown.clean_abandoned()
    run = RunFolder.named(arguments.name)
    if arguments.keep_logs and (folder := run.save_logs()):
        print(f"logs: {folder}")
    teardown.clean(run, Daemons(run.path))
    run.remove()


def status(arguments: argparse.Namespace) -> int:
    """Tell which parts and nodes run; 1 if a part does not."""
    cluster = Cluster.named(arguments.name, only_look=True)
    lost = {daemon for node in cluster.lost_nodes for daemon in (f"kubelet-{node}", f"containerd-{node}")}
    absent = 0
    for part in cluster.parts:
        pid = cluster.part_pid(part)
        absent += pid is None and part not in lost
        print(f"{part:26} {f'pid {pid}' if pid else 'lost with its node' if part in lost else 'ENDED'}")
    print(cluster.kubectl("get", "nodes", "--output=wide", check=False), end="")
    return 1 if absent else 0


def enter(arguments: argparse.Namespace) -> None:
    """Become a command inside the cluster's network, with KUBECONFIG set."""
    cluster = Cluster.named(arguments.name, only_look=True)
    program = [] if arguments.command == "exec" else [arguments.command]
    words = cluster.inside([*program, *(arguments.words or [os.environ.get("SHELL", "sh")] * (not program))])
    os.execvpe(words[0], words, cluster.environment())


def lose_node(arguments: argparse.Namespace) -> None:
    """Kill a node."""
    Cluster.named(arguments.name).lose_node(arguments.node, silent=arguments.silent)


def return_node(arguments: argparse.Namespace) -> None:
    """Bring a node back."""
    Cluster.named(arguments.name).return_node(arguments.node, reboot=arguments.reboot)


def restart(arguments: argparse.Namespace) -> None:
    """Restart a part."""
    Cluster.named(arguments.name).restart(arguments.part, graceful=arguments.graceful)


def load_image(arguments: argparse.Namespace) -> None:
    """Load an image archive into all nodes."""
    Cluster.named(arguments.name).load_image(arguments.archive)


def build_binaries(arguments: argparse.Namespace) -> None:
    """Build the programs and say where they are, in the form of a search path."""
    built = binaries.for_control_plane() if arguments.control_plane else binaries.for_cluster()
    print(os.pathsep.join(built.folders()))


def build_images(_: argparse.Namespace) -> None:
    """Build the product's images and say what they are called."""
    built = images.build()
    print(json.dumps({"archive": str(built.archive), **built.references}, indent=1))


def wheels(arguments: argparse.Namespace) -> None:
    """Make the build context of the Containerfiles."""
    images.wheels(paths.REPOSITORY, arguments.context, arguments.python)
    print(arguments.context / "wheels")


def show_requirements(arguments: argparse.Namespace) -> int:
    """Tell what is missing; 1 if something is."""
    if arguments.install:
        requirements.ensure_packages()
    lines = requirements.missing(Level.IMAGES)
    for line in lines:
        print(line)
    return 1 if lines else 0


def _version(text: str) -> tuple[int, int]:
    major, minor = text.split(".")
    return int(major), int(minor)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m durable_testbed", description=__doc__)
    parser.add_argument("--name", default=NAME, help="which cluster (default: %(default)s)")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, act: Callable[[argparse.Namespace], int | None], text: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(act=act)
        return command

    command = add("up", up, "start a cluster; one of that name that runs is ended first")
    command.add_argument("--nodes", type=int, default=NODES, choices=(1, 2, 3))
    command.add_argument(
        "--loss-seconds", type=int, default=LOSS_SECONDS, help="silence after which a node is lost (%(default)s)"
    )
    command.add_argument("--images", action="store_true", help="build the product's images and load them")
    command = add("down", down, "end the cluster and remove all it left")
    command.add_argument("--keep-logs", action="store_true")
    add("status", status, "parts and nodes; exit status 1 if a part has ended")
    for name in ("kubectl", "helm", "exec"):
        text = "a command (default: a shell)" if name == "exec" else name
        command = commands.add_parser(
            name, help=f"{text} inside the cluster's network", add_help=False, prefix_chars="\0"
        )
        command.add_argument("words", nargs=argparse.REMAINDER)
        command.set_defaults(act=enter)
    command = add("lose-node", lose_node, "kill a node's daemons and pods at one instant")
    command.add_argument("node")
    command.add_argument("--silent", action="store_true", help="peers see no closed connection, just nothing")
    command = add("return-node", return_node, "start a lost node again")
    command.add_argument("node")
    command.add_argument("--reboot", action="store_true", help="without what a reboot takes away")
    command = add("restart", restart, "kill a part (see status) and start it again")
    command.add_argument("part")
    command.add_argument("--graceful", action="store_true", help="SIGTERM, not SIGKILL")
    command = add("load-image", load_image, "load an image archive into all nodes")
    command.add_argument("archive", type=Path)
    command = add("build-binaries", build_binaries, "build the cluster's programs into the cache; prints their folders")
    command.add_argument("--control-plane", action="store_true", help="only those of a control plane")
    add("build-images", build_images, "build the product's images into the cache; prints their names")
    command = add("wheels", wheels, "make CONTEXT/wheels anew: CONTEXT is what images/*/Containerfile are built from")
    command.add_argument("context", type=Path, metavar="CONTEXT")
    command.add_argument(
        "--python",
        type=_version,
        default=images.PUBLIC_PYTHON,
        metavar="X.Y",
        help="of the base image (default: {}.{})".format(*images.PUBLIC_PYTHON),
    )
    command = add("requirements", show_requirements, "what this machine lacks; exit status 1 if it does")
    command.add_argument("--install", action="store_true", help="install missing Debian packages first")
    return parser


if __name__ == "__main__":
    sys.exit(main())
