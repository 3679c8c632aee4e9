"""A real Kubernetes on one Linux machine, without Docker, for the tests that no emulator could stand in for.

`ControlPlane` is an API server with etcd and the controller manager, on loopback; `Cluster` is two whole nodes in a
network namespace of their own. `plugin` has them as pytest fixtures, `__main__` as commands for people.
"""

from durable_testbed.cluster import Cluster as Cluster
from durable_testbed.control_plane import ControlPlane as ControlPlane
from durable_testbed.errors import BedError as BedError
from durable_testbed.errors import MissingError as MissingError
