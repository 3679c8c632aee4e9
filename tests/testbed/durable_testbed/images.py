"""The product's images, built from this checkout and kept in the cache.

The images are made of wheels that the host fetched, so their builds need no package index. Their base is made of Debian
packages, because a registry of images may be out of reach where the tests run; people who build the same Containerfiles
without `BASE` get the official Python image. Everything is named by the hash of what goes into it: an image is built
again when the product, its dependencies, its Containerfile or its base changed, and not otherwise.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

from durable_testbed import oci, paths, requirements
from durable_testbed.errors import BedError
from durable_testbed.process import call, say

EXTRAS = {"operator": ("operator",), "driver": ("driver", "models"), "space": ("space",)}  # of the wheel, by image
BESIDES = ("pytest",)  # what an image holds for an agent's commands
SUITE, SUITE_PYTHON, GLIBC = "bookworm", (3, 11), (2, 36)
PUBLIC_PYTHON = (3, 12)  # of the base that the Containerfiles name, whose glibc is as new
RUN_ROOT = Path("/run/durable-testbed-buildah")  # in /run because what it says of mounts must not outlive a reboot
ARCHIVES_KEPT = 2
DANGLING_MAX = 60
BASE_PACKAGES = ("python3", "python3-venv", "ca-certificates", "git", "procps")
BASE_EXCLUDES = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*")


@dataclass(frozen=True)
class Images:
    """Built images: their references by name, and one archive that holds them all."""

    references: Mapping[str, str]
    archive: Path


def build(repository: Path = paths.REPOSITORY) -> Images:
    """Build the images of the product in `repository`, or find them in the cache."""
    requirements.check(requirements.Level.IMAGES)
    folder = _folder()
    with paths.locked(folder / "images.lock", "the images"):
        store = _Store(folder / "storage")
        base = _base(folder, store)
        context = folder / "context"
        _fill_context(repository, context, SUITE_PYTHON)
        content = [part for kind in ("dependencies", "product") for part in _contents(context / "wheels" / kind)]
        references = {}
        for name in EXTRAS:
            containerfile = repository / "images" / name / "Containerfile"
            key = _digest(containerfile.read_bytes(), base.encode(), *content)
            references[name] = f"localhost/durable-{name}:{key}"
            store.build(references[name], containerfile, context, base)
        archive = _archive(folder, store, references)
        store.remove_others({base, *references.values()})
    return Images(references, archive)


def wheels(repository: Path, context: Path, python: tuple[int, int] = PUBLIC_PYTHON) -> None:
    """Make `context/wheels` anew, with the wheels that the Containerfiles install on a base with this Python."""
    context.mkdir(parents=True, exist_ok=True)
    with paths.locked(_folder() / "images.lock", "the images"):
        _fill_context(repository, context, python)


class _Store:
    """buildah with a storage of its own, so that neither it nor the user's own images meet."""

    def __init__(self, folder: Path):
        self._command = ["buildah", f"--root={folder}", f"--runroot={RUN_ROOT}", "--storage-driver=overlay"]

    def references(self) -> set[str]:
        lines = self("images", "--format={{.Name}}:{{.Tag}}").splitlines()
        return {line for line in lines if not line.startswith("<none>")}

    def build(self, reference: str, containerfile: Path, context: Path, base: str = "") -> None:
        if reference in self.references():
            return
        begun = time.monotonic()
        say(f"building image {reference}")
        arguments = [f"--build-arg=BASE={base}", "--pull-never"] if base else []
        options = ["--layers", "--isolation=chroot", "--network=host", f"--tag={reference}", f"--file={containerfile}"]
        self("bud", *options, *arguments, context)
        say(f"built image {reference} in {time.monotonic() - begun:.0f} s")

    def push(self, reference: str, layout: Path) -> None:
        # zstd: the import into the nodes is done in every run, and gzip takes it half as long again.
        self("push", "--compression-format=zstd", reference, f"oci:{layout}:{reference}")

    def remove_others(self, wanted: Iterable[str]) -> None:
        if old := self.references() - set(wanted):
            self("rmi", "--force", *sorted(old))
        # Layers without a name are what the next build starts from; only when there are many are they removed.
        if len(self("images", "--all", "--quiet", "--filter=dangling=true").split()) > DANGLING_MAX:
            self("rmi", "--prune", check=False)

    def __call__(self, *args: str | Path, check: bool = True) -> str:
        return call(*self._command, *args, check=check, timeout_seconds=900)


def _folder() -> Path:
    folder = paths.cache() / "images"
    folder.mkdir(exist_ok=True)
    return folder


def _base(folder: Path, store: _Store) -> str:
    """The reference of the base image, made of Debian packages if it is not there."""
    key = _digest(repr((SUITE, BASE_PACKAGES, BASE_EXCLUDES)).encode())
    reference = f"localhost/durable-testbed-base:{key}"
    if reference in store.references():
        return reference
    begun = time.monotonic()
    say(f"making the base image of Debian packages (once per machine; about 40 s): {reference}")
    with paths.published(folder / "base") as fresh:
        call(
            "mmdebstrap",
            "--variant=minbase",
            f"--include={','.join(BASE_PACKAGES)}",
            *(f"--dpkgopt=path-exclude={pattern}" for pattern in BASE_EXCLUDES),
            SUITE,
            fresh / "base.tar",
            timeout_seconds=900,
        )
        (fresh / "Containerfile").write_text("FROM scratch\nADD base.tar /\nENV PATH=/usr/local/bin:/usr/bin:/bin\n")
        store.build(reference, fresh / "Containerfile", fresh)
        (fresh / "base.tar").unlink()
    say(f"made the base image in {time.monotonic() - begun:.0f} s")
    return reference


def _fill_context(repository: Path, context: Path, python: tuple[int, int]) -> None:
    """Fill `context/wheels`: `product/`, and `dependencies/` with a list of requirements for each image."""
    product = _product_wheel(repository, context)
    constraints = repository / "constraints.txt"
    needs = _requirements(product)
    pinned = constraints.read_bytes() if constraints.exists() else b""
    target = _target(python)
    kind = "dependencies-{}.{}".format(*python)
    dependencies = _folder() / f"{kind}-{_digest(repr((needs, BESIDES, target)).encode(), pinned)}"
    if not dependencies.is_dir():
        begun = time.monotonic()
        say("fetching the wheels of the product's dependencies")
        for old in _folder().glob(f"{kind}-*"):
            shutil.rmtree(old)
        with paths.published(dependencies) as fresh:
            for name, lines in needs.items():
                (fresh / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines))
            _pip(
                *("download", f"--dest={fresh}", "--only-binary=:all:", *target),
                *([f"--constraint={constraints}"] if constraints.exists() else []),
                *(f"--requirement={fresh / name}.txt" for name in needs),
                *BESIDES,
            )
        say(f"fetched them in {time.monotonic() - begun:.0f} s")
    with paths.published(context / "wheels") as fresh:
        shutil.copytree(dependencies, fresh / "dependencies")
        (fresh / "product").mkdir()
        shutil.move(product, fresh / "product")
    shutil.rmtree(product.parent)


def _requirements(wheel: Path) -> dict[str, list[str]]:
    """What each image's part of the product needs, read from the wheel's metadata."""
    with ZipFile(wheel) as content:
        name = next(name for name in content.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = content.read(name).decode()
    needs: dict[str, list[str]] = {name: [] for name in EXTRAS}
    for line in re.findall(r"^Requires-Dist: (.+)$", metadata, re.MULTILINE):
        requirement, _, marker = line.partition(";")
        extra = re.search(r"extra == ['\"]([^'\"]+)", marker)
        for name, extras in EXTRAS.items():
            if not extra or extra[1] in extras:
                needs[name].append(requirement.strip())
    return needs


def _product_wheel(repository: Path, context: Path) -> Path:
    """Build the product's wheel; its bytes are the same whenever the files in it are."""
    target = context / "product"
    shutil.rmtree(target, ignore_errors=True)
    _pip("wheel", "--no-deps", "--wheel-dir", str(target), str(repository))
    (wheel,) = target.glob("durable_sessions-*.whl")
    return wheel


def _target(python: tuple[int, int]) -> list[str]:
    """The options by which pip takes wheels for the base image's Python, whatever runs it here."""
    major, minor = python
    libc_major, libc_newest = GLIBC
    machine = os.uname().machine
    names = [f"manylinux_{libc_major}_{libc}_{machine}" for libc in range(libc_newest, 4, -1)]
    aliases = [f"manylinux2014_{machine}", f"manylinux2010_{machine}", f"manylinux1_{machine}", f"linux_{machine}"]
    platforms = [f"--platform={name}" for name in (*names, *aliases)]
    abis = [f"--abi={abi}" for abi in (f"cp{major}{minor}", "abi3", "none")]
    return [f"--python-version={major}.{minor}", "--implementation=cp", *abis, *platforms]


def _pip(*args: str) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    if done.returncode:
        raise BedError(f"pip {args[0]} failed: {done.stderr.strip()[-2000:]}")


def _archive(folder: Path, store: _Store, references: Mapping[str, str]) -> Path:
    """One archive of all images: what they share, the base above all, is in it once."""
    target = folder / f"images-{_digest(*sorted(reference.encode() for reference in references.values()))}.tar"
    if target.exists():
        target.touch()
        return target
    begun = time.monotonic()
    # Not all of them: another test session may be about to load its own.
    newest_last = sorted(folder.glob("images-*.tar"), key=lambda archive: archive.stat().st_mtime)
    for old in newest_last[:-ARCHIVES_KEPT]:
        old.unlink()
    with paths.published(folder / "layout") as layout:
        for reference in references.values():
            store.push(reference, layout)
        oci.archive_layout(layout, target)
    shutil.rmtree(folder / "layout")
    say(f"packed the images in {time.monotonic() - begun:.0f} s: {target.stat().st_size >> 20} MiB")
    return target


def _contents(folder: Path) -> list[bytes]:
    return [part for file in sorted(folder.iterdir()) for part in (file.name.encode(), file.read_bytes())]


def _digest(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()[:16]
