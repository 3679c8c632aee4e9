"""`python -m campaign.space crash|epoch`: break the Space daemon, and see that its promises hold. Seeded.

Run it from the root of the repository. A batch is some rounds on one data folder; its seed makes it again:
`python -m campaign.space crash --seed SEED --runs BATCH --jobs 1`. Ends with 1 if a promise was broken; the data folder of
such a batch is kept.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from multiprocessing import get_context

from campaign.space.batches import Result, crash_batch, epoch_batch

from durable_space.testing import kill_mechanisms

BATCH = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=("crash", "epoch"))
    parser.add_argument("--runs", type=int, default=100, help="rounds, all together")
    parser.add_argument("--seed", type=int, default=1, help="of the first batch; the next has the next")
    parser.add_argument("--jobs", type=int, default=2, help="batches at once")
    parser.add_argument("--kill-mechanism", choices=kill_mechanisms(), help="default: in turns, those that work here")
    options = parser.parse_args()
    mechanisms = [options.kill_mechanism] if options.kill_mechanism else kill_mechanisms()
    batch = crash_batch if options.mode == "crash" else epoch_batch
    begin = time.monotonic()
    total: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        left = options.runs
        jobs: list[Future[Result]] = []
        while left > 0:
            number = len(jobs)
            rounds = min(BATCH, left)
            jobs.append(pool.submit(batch, mechanisms[number % len(mechanisms)], options.seed + number, rounds))
            left -= rounds
        for job in as_completed(jobs):
            result = job.result()
            total.update(rounds=result.rounds, commands=result.commands, lost=result.lost)
            faults.update(result.faults)
            if result.failure:
                total["failed"] += 1
                print(f"seed {result.seed}, after {result.rounds} rounds: {result.failure}", flush=True)
            print(f"{total['rounds']}/{options.runs} rounds, {total['failed']} failed", file=sys.stderr, flush=True)
    summary = {"mode": options.mode, "mechanisms": mechanisms, "seed": options.seed, **total, "failed": total["failed"],
               "seconds": round(time.monotonic() - begin), "faults": dict(sorted(faults.items()))}  # fmt: skip
    print("SUMMARY " + json.dumps(summary))
    sys.exit(1 if total["failed"] else 0)


if __name__ == "__main__":
    main()
