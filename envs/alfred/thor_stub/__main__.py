"""Command ``python -m envs.alfred.thor_stub``: the stand-in for AI2-THOR, started by ai2thor's client."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from envs.alfred.thor_stub.protocol.channel import FAULTS, Channel, parse_faults, serve
from envs.alfred.thor_stub.protocol.pipes import Pipes
from envs.alfred.thor_stub.rooms import Rooms
from envs.alfred.thor_stub.simulator import Simulator
from keep_agent.errors import ConfigError, KeepError

ABOUT = """A process that stands in for AI2-THOR. ai2thor's Controller(local_executable_path=...) starts it and
connects to it over named pipes or HTTP. AI2-THOR's own flags (-screen-width 300, -batchmode, ...) may follow."""
UNUSABLE = 2  # exit status for wrong options, the same as argparse's


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve one client until the client ends."""
    parser = _parser()
    options, flags = parser.parse_known_args(arguments)
    try:
        plan = parse_faults(options.fault, options.once)
        simulator = Simulator.of(Rooms(options.data, options.split), "-batchmode" not in flags, plan.unknown)
        simulator.session.width = _number(flags, "-screen-width", 300)
        simulator.session.height = _number(flags, "-screen-height", 300)
        serve(_channel(), simulator, plan)
    except KeepError as error:
        parser.exit(UNUSABLE, f"error: {error}\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m envs.alfred.thor_stub",
        description=ABOUT,
        epilog=f"--fault SPEC: {FAULTS}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,  # -h is a prefix of other flags
        allow_abbrev=False,
    )
    parser.add_argument("--help", action="help", help="show this and exit")
    parser.add_argument("--data", metavar="FOLDER", help="ALFRED's json_2.1.0; adds its floor plans to the scenes")
    parser.add_argument(
        "--split",
        metavar="NAME",
        action="append",
        default=[],
        help="split whose trials supply the objects; may be repeated (default: all unpacked splits)",
    )
    parser.add_argument("--fault", metavar="SPEC", action="append", default=[], help="see below; may be repeated")
    parser.add_argument(
        "--once", metavar="FILE", type=Path, help="no faults if FILE exists; the first fault creates it"
    )
    return parser


def _number(flags: list[str], name: str, default: int) -> int:
    """Return the whole number that follows the flag ``name``, or the default."""
    if name not in flags[:-1]:
        return default
    value = flags[flags.index(name) + 1]
    return int(value) if value.isdecimal() else default


def _channel() -> Channel:
    """Return the channel that the client's environment variables describe. Raises ConfigError if they are not set."""
    server, client = (os.environ.get(f"AI2THOR_FIFO_{name}_PIPE_PATH") for name in ("SERVER", "CLIENT"))
    if os.environ.get("AI2THOR_SERVER_TYPE") == "WSGI":
        from envs.alfred.thor_stub.protocol.http import Http

        host, port = os.environ.get("AI2THOR_HOST", "127.0.0.1"), os.environ.get("AI2THOR_PORT", "0")
        return Http(host, int(port), os.environ.get("AI2THOR_CLIENT_TOKEN", ""))
    if server and client:
        return Pipes(server, client)
    raise ConfigError("no client: let ai2thor start this process, or set AI2THOR_SERVER_TYPE=WSGI or the FIFO paths")


if __name__ == "__main__":
    main()
