"""The Space's daemon on one machine, where it does not start."""

import json
from pathlib import Path

import pytest

from durable_coordinator.spec_space import SpaceSpec
from durable_local import placement
from durable_local.daemon import Daemon
from durable_local.events import Event
from durable_local.layout import StateError, session_home


@pytest.mark.parametrize("full", [True, False])
def test_one_that_left_no_trace_is_told_as_a_full_disk_if_it_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    home = session_home(tmp_path, "s")
    placement.place(home, 1, epoch_floor=0, fill=True, files={})
    run = home.generation(1) / "run-1"
    run.mkdir(parents=True)
    (run / "claim").write_text(json.dumps({"uid": "u", "pid": 1, "start": 1, "boot": "of another time"}))
    if full:
        monkeypatch.setattr("durable_local.daemon.free_bytes", lambda folder: 4096)
    told: list[Event] = []
    daemon = Daemon(home, "s", 1, SpaceSpec(), told.append)
    if full:
        with pytest.raises(StateError, match=r"disk is full .4 KiB free.*Make room there"):
            daemon.watch({})
        assert told == []
    else:
        daemon.watch({})
        (event,) = told
        assert (event.name, event.fields["listened"]) == ("space.gone", False)
