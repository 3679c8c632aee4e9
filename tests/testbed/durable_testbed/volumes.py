"""Volumes for claims: a default storage class, and folders of the run on each node, made when the cluster starts.

Nothing here provisions: a claim takes one of the volumes that are there, on the node where its pod is placed, and keeps it. They
are local volumes rather than host paths, since only of those does a kubelet give the files to the pod's group.
"""

import json
from collections.abc import Iterable
from pathlib import Path

STORAGE_CLASS = "local"
PER_NODE = 20
CAPACITY = "64Gi"  # more than anybody asks for; nothing counts what is used


def make(folder: Path, nodes: Iterable[str]) -> str:
    """Make the volumes' folders below `folder`; gives back the objects to create, as JSON."""
    names = {f"{node}-{number:02}": node for node in nodes for number in range(1, PER_NODE + 1)}
    for name in names:
        (folder / name).mkdir(parents=True)
    items = [_storage_class(), *(_volume(name, folder / name, node) for name, node in names.items())]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})


def _storage_class() -> object:
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": STORAGE_CLASS, "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
        "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer",
    }


def _volume(name: str, folder: Path, node: str) -> object:
    terms = [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}]
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": CAPACITY},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": STORAGE_CLASS,
            "local": {"path": str(folder)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": terms}},
        },
    }
