"""OCI image archives, written without any tool: for the test bed's own image, and to put several images in one file."""

import hashlib
import io
import json
import os
import platform
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from durable_testbed import binaries, paths

MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
LAYOUT = json.dumps({"imageLayoutVersion": "1.0.0"}).encode()
REFERENCE = "io.containerd.image.name"  # the annotation from which containerd takes the name of an image


def tools_image() -> tuple[str, Path]:
    """The name and the archive of the test bed's own image (`modules/tools`); made once per machine."""
    program = binaries.ensure(binaries.TOOLS) / "tools"
    name = f"localhost/durable-testbed-tools:{binaries.TOOLS.key()}"
    archive = program.parent.parent / "tools.tar"
    if not archive.exists():
        with paths.locked(archive.with_suffix(".lock"), "the tools image"):
            write_archive(archive, name, {"tools": program.read_bytes()}, ["/tools"], ["pause"])
    return name, archive


def write_archive(
    target: Path, name: str, files: Mapping[str, bytes], entrypoint: Sequence[str], command: Sequence[str]
) -> None:
    """Write an image with one layer that holds `files`, all executable."""
    blobs: dict[str, bytes] = {}

    def blob(kind: str, data: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = data
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{digest}", "size": len(data)}

    layer = blob("layer.v1.tar", _tar(files, 0o755))
    config = {
        "architecture": MACHINES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {"Entrypoint": list(entrypoint), "Cmd": list(command)},
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
    }
    kind = "manifest.v1+json"
    content = {
        "schemaVersion": 2,
        "mediaType": f"application/vnd.oci.image.{kind}",
        "config": blob("config.v1+json", json.dumps(config).encode()),
        "layers": [layer],
    }
    manifest = blob(kind, json.dumps(content).encode())
    manifest["annotations"] = {REFERENCE: name}
    index = json.dumps({"schemaVersion": 2, "manifests": [manifest]}).encode()
    fresh = target.with_suffix(".new")
    fresh.write_bytes(_tar({"oci-layout": LAYOUT, "index.json": index, **blobs}, 0o644))
    fresh.replace(target)


def archive_layout(layout: Path, target: Path) -> None:
    """Pack an OCI layout folder into an archive."""
    fresh = target.with_suffix(".new")
    with tarfile.open(fresh, mode="w") as archive:
        for name in sorted(os.listdir(layout)):
            archive.add(layout / name, arcname=name)
    fresh.replace(target)


def _tar(members: Mapping[str, bytes], mode: int) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for path, data in members.items():
            info = tarfile.TarInfo(path)
            info.size, info.mode = len(data), mode
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()
