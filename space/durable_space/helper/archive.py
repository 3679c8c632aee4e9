"""The helper as one file: a zipapp of the modules that it needs, built from this package's own files.

The same package gives the same bytes (sorted names, fixed times, stored as they are), so its hash names it, and one that a
Space has already is not sent again.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

MODULES = (
    "durable_base", "durable_base.crash", "durable_base.files", "durable_base.floor", "durable_base.handles",
    "durable_base.trees",
    "durable_space", "durable_space.files", "durable_space.gate", "durable_space.mounts",
    "durable_space.paths", "durable_space.procfs",
    "durable_space.refusal", "durable_space.staging",
    "durable_space.workspace", "durable_space.workspace.apply", "durable_space.workspace.entries",
    "durable_space.workspace.hashes", "durable_space.workspace.places", "durable_space.workspace.scan",
    "durable_space.workspace.unstamped", "durable_space.workspace.workspace",
    "durable_space.helper", "durable_space.helper.arguments", "durable_space.helper.conversation",
    "durable_space.helper.frames", "durable_space.helper.life", "durable_space.helper.main",
    "durable_space.helper.opened", "durable_space.helper.operations", "durable_space.helper.tables",
)  # fmt: skip
PACKAGES = ("durable_base", "durable_space", "durable_space.workspace", "durable_space.helper")
# Started so, by any python3: nothing of the Space's own modules, nothing written beside the archive, and names are UTF-8.
PYTHON_FLAGS = ("-I", "-S", "-B", "-X", "utf8")
_TIME = (1980, 1, 1, 0, 0, 0)  # the earliest that a zip can hold

# Read by whatever python3 the Space has: nothing newer than Python 3.0 stands above the check.
_START = """\
import sys
if sys.version_info < (3, 11):
    import json, os, struct
    text = "the Space's python3 is %d.%d: its helper needs Python 3.11 or newer there" % sys.version_info[:2]
    error = {"code": "FAILED_PRECONDITION", "reason": "FEATURE_UNSUPPORTED", "message": text,
             "metadata": {"condition": "PythonTooOld"}}
    message = json.dumps({"error": error}).encode("ascii")
    os.write(1, struct.pack(">4sII", b"DSH1", len(message), 0) + message)
    sys.exit(3)
from durable_space.helper.main import main
sys.exit(main(sys.argv[1:]))
"""


@dataclass(frozen=True, slots=True)
class Archive:
    data: bytes
    sha256: str  # hex

    @property
    def name(self) -> str:
        return f"helper-{self.sha256}.pyz"


@cache
def build() -> Archive:
    members = {_member(module): _source(module) for module in MODULES}
    members["__main__.py"] = _START.encode("ascii")
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as archive:
        for name, source in sorted(members.items()):
            member = zipfile.ZipInfo(name, _TIME)
            member.create_system = 3
            member.external_attr = 0o644 << 16
            archive.writestr(member, source)
    data = made.getvalue()
    return Archive(data, hashlib.sha256(data).hexdigest())


def _member(module: str) -> str:
    return module.replace(".", "/") + ("/__init__.py" if module in PACKAGES else ".py")


def _source(module: str) -> bytes:
    package, _, name = module.rpartition(".")
    if module in PACKAGES:
        return files(module).joinpath("__init__.py").read_bytes()
    return files(package).joinpath(f"{name}.py").read_bytes()
