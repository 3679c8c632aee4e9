"""What cua-spacesd's own package is tested against; the package itself is installed once into the cache folder."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "support"))

from cua_drives import Drivers
from cua_peers import TOKEN, RealDaemon, cua_package, our_daemon, real_daemon


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


@pytest.fixture
def cua(tmp_path):
    """A cua-spacesd of the test's own."""
    daemon = RealDaemon(tmp_path / "space")
    (tmp_path / "token").write_text(TOKEN)
    try:
        daemon.start()
        yield daemon
    finally:
        daemon.kill()


@pytest.fixture
async def drivers(cua, tmp_path):
    """`drivers.drive(epoch)`: what a driver of it gets; closed at the end."""
    made = Drivers(cua, tmp_path / "token", [])
    yield made
    for client in made.clients:
        await client.close()
