"""What cua-spacesd's own package is tested against; the package itself is installed once into the cache folder."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "support"))

from cua_peers import cua_package, our_daemon, real_daemon


@pytest.fixture(scope="session")
def cua_folder():
    """Where the package `cua` lies; for processes of its own alone."""
    return cua_package()


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    with our_daemon(tmp_path_factory.mktemp("ours") / "space") as peer:
        yield peer


@pytest.fixture(scope="module")
def theirs(tmp_path_factory, cua_folder):
    with real_daemon(tmp_path_factory.mktemp("theirs") / "space") as peer:
        yield peer
