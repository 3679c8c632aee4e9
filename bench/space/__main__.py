"""`python -m bench.space`: ours beside the real cua-spacesd and beside plain tools, in one run, as ratios.

Run it from the root of the repository. A busy machine makes all numbers larger; the ratios are what to read.
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
from pathlib import Path

from bench.space.commands import durable, memory_per_command
from bench.space.frames import flow
from bench.space.peer import our_daemon, real_daemon
from bench.space.trees import ScanTimes, make_tree, scan_times

PARTS = ("commands", "scan", "frames", "memory")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200, help="of each command")
    parser.add_argument("--kill-mechanism", default="auto", help="of our daemon")
    parser.add_argument("--only", choices=PARTS, action="append", help="repeatable; default: all")
    options = parser.parse_args()
    parts = options.only or PARTS
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"{os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}, load {load}\n")
    with tempfile.TemporaryDirectory(prefix="bench-space-") as name:
        folder = Path(name)
        mechanism = ("--kill-mechanism", options.kill_mechanism)
        if "commands" in parts:
            commands(folder / "commands", mechanism, options.rounds)
        if "scan" in parts:
            scans(folder / "scan", mechanism)
        if "frames" in parts:
            frames(folder / "frames", mechanism)
        if "memory" in parts:
            with our_daemon(folder / "memory", *mechanism) as (daemon, client):
                cost, own = memory_per_command(daemon, client, 50)
            print(f"memory: {cost:.1f} MiB for each of 50 running commands beside the command; daemon {own:.0f} MiB")


def commands(folder: Path, mechanism: tuple[str, ...], rounds: int) -> None:
    with our_daemon(folder / "ours", *mechanism) as (daemon, ours), real_daemon(folder / "theirs") as theirs:
        tables = durable(ours, theirs, rounds)
        print(
            f"kill mechanism {daemon.announced['kill_mechanism']}; milliseconds p50 / p95, {rounds} rounds in turns\n"
        )
    print("| | ours | cua-spacesd | child process | ours : cua-spacesd, p50 |")
    print("|---|---|---|---|---|")
    for name, times in tables.items():
        cells = [f"{one.at(0.5) * 1e3:.1f} / {one.at(0.95) * 1e3:.1f}" for one in times.values()]
        print(f"| {name} | {' | '.join(cells)} | {times['ours'].at(0.5) / times['cua-spacesd'].at(0.5):.2f} |")
    print()


def scans(folder: Path, mechanism: tuple[str, ...]) -> None:
    print(
        "| tree | first scan | warm scan | `find` + `sha256sum` | `find` alone | warm is faster than `find` + `sha256sum` by |"
    )
    print("|---|---|---|---|---|---|")
    for files, size in ((1_000, 16 << 20), (50_000, 100 << 20)):
        with our_daemon(folder / str(files), *mechanism) as (daemon, client):
            make_tree(daemon.workspace, files, size, seed=files)
            print(_scan_row(scan_times(client, daemon.workspace, files, 5)))
    print()


def _scan_row(times: ScanTimes) -> str:
    cells = [f"{seconds * 1e3:.0f} ms" for seconds in (times.cold, times.warm, times.find_and_sum, times.find)]
    factor = times.find_and_sum / times.warm
    return f"| {times.files:,} files, {times.mib:.0f} MiB | {' | '.join(cells)} | {factor:.1f} |"


def frames(folder: Path, mechanism: tuple[str, ...]) -> None:
    with our_daemon(folder / "ours", *mechanism, "--keep-output-bytes", str(1 << 30)) as (_, ours):
        own = flow(ours, 256)
    with real_daemon(folder / "theirs") as theirs:
        other = flow(theirs, 256, keep=False)
    print(f"output: live {own.live_mb_s:.0f} MB/s, replayed {own.replay_mb_s:.0f} MB/s in frames of "
          f"{own.frame_bytes / 1024:.0f} KiB; cua-spacesd live {other.live_mb_s:.0f} MB/s\n")  # fmt: skip


if __name__ == "__main__":
    main()
