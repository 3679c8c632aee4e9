"""One command, run once, whatever is killed: this program, the daemon, or both. Start it again, and it goes on.

python run_once.py [--space unix:/tmp/demo/s]
"""

import argparse
import asyncio
import sys

from durable_spaces.client import (
    Address,
    CommandSpec,
    Floor,
    HaltError,
    SpaceClient,
    StaleEpochError,
    new_incarnation,
)

KEY = "count-1"  # names this one run; another key is another run
COUNT = CommandSpec.shell(
    "echo started >> starts; while read -r line; do echo $line; sleep 1; done < lines", timeout_seconds=60
)


async def main(target: str) -> int:
    async with SpaceClient(Address(target)) as client:
        info = await client.info()
        # Nobody else issues epochs here, so this program does: one above whoever was here last. Once `advance` has answered,
        # that one can do nothing any more, should it still live; the command it started goes on, since it is named.
        own = Floor(info.floor.epoch + 1, new_incarnation())
        space = await client.advance(info, adopt=[KEY], own=own)
        print(f"epoch {own.epoch}; still running: {', '.join(space.advanced.adopted) or 'nothing'}", flush=True)

        # Whole or not at all, and the same each time.
        await space.files.write(f"{space.root}/lines", b"".join(b"line %d\n" % number for number in range(1, 9)))
        result = await space.run(KEY, COUNT, on_output=show)

        starts = (await space.files.read(f"{space.root}/starts")).count(b"\n")
        lines = result.stdout.count(b"\n")
        print(f"exit code {result.exit_code}; {lines} lines; starts: {starts}")
        return result.exit_code


def show(piece: bytes, stream: str) -> None:
    print(piece.decode(errors="replace"), end="", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--space", default="unix:/tmp/demo/s", metavar="ADDR", help="unix:/path or HOST:PORT")
    try:
        sys.exit(asyncio.run(main(parser.parse_args().space)))
    except HaltError as halted:
        sys.exit(f"{halted}\nStart the daemon if it is not there, and then this program again.")
    except StaleEpochError as stale:
        sys.exit(f"{stale}: was this program started a second time?")
    except KeyboardInterrupt:
        sys.exit("\nThe command runs on. Start this program again to see its end.")
