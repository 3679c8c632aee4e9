"""Generate `proto/durable_protocol/` from the .proto files: messages, gRPC stubs and their types.

protoc writes imports by proto package (`from cua.env.v1 import ...`), which would claim the top-level names `cua` and
`durable` in every process that uses us. They are rewritten to live below `durable_protocol`.

    python proto/generate.py          write
    python proto/generate.py --check  exit 1 if the committed code is not what the .proto files give
"""

from __future__ import annotations

import argparse
import filecmp
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
TARGET = HERE / "durable_protocol"
IMPORTS = re.compile(r"^(from|import) (cua|durable)\.", re.MULTILINE)
NAMES = re.compile(r"(?<![\w.\"'/])(cua|durable)\.(env|space|session)\.v1\.(\w+_pb2)\b")


def generate(into: Path) -> None:
    sources = sorted(str(p.relative_to(HERE)) for top in ("cua", "durable") for p in (HERE / top).rglob("*.proto"))
    flags = [f"--{kind}_out={into}" for kind in ("python", "grpc_python", "mypy", "mypy_grpc")]
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", f"-I{HERE}", *flags, *sources],
        check=True,
        cwd=HERE,
        env={"PATH": str(Path(sys.executable).parent)},
    )
    for path in into.rglob("*.py*"):
        text = IMPORTS.sub(r"\1 durable_protocol.\2.", path.read_text())
        path.write_text(NAMES.sub(r"durable_protocol.\1.\2.v1.\3", text))
    for folder in [into, *(p for p in into.rglob("*") if p.is_dir())]:
        (folder / "__init__.py").write_text("")
    (into / "py.typed").write_text("")


def same(left: Path, right: Path) -> bool:
    def files(top: Path) -> list[str]:
        return sorted(str(p.relative_to(top)) for p in top.rglob("*") if p.is_file() and "__pycache__" not in p.parts)

    names = files(left)
    return names == files(right) and not any(filecmp.cmpfiles(left, right, names, shallow=False)[1:])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare only")
    check = parser.parse_args().check
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder) / "durable_protocol"
        fresh.mkdir()
        generate(fresh)
        if same(fresh, TARGET):
            return 0
        if check:
            sys.stderr.write(
                "proto/durable_protocol is not what the .proto files give: run `python proto/generate.py`\n"
            )
            return 1
        shutil.rmtree(TARGET, ignore_errors=True)
        shutil.copytree(fresh, TARGET)
    return 0


if __name__ == "__main__":
    sys.exit(main())
