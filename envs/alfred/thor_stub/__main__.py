"""``python -m envs.alfred.thor_stub``: stands in for AI2-THOR; ai2thor's client starts it with its own flags."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from envs.alfred.thor_stub import faults
from envs.alfred.thor_stub.protocol.channel import Channel
from envs.alfred.thor_stub.protocol.pipes import Pipes
from envs.alfred.thor_stub.protocol.serving import serve
from envs.alfred.thor_stub.rooms import Rooms
from envs.alfred.thor_stub.simulator import Simulator
from keep_agent.errors import ConfigError, KeepError

ABOUT = """Stands in for AI2-THOR: ai2thor's Controller(local_executable_path=...) starts it as it would start the real
build, over named pipes or HTTP. The build's own flags (-screen-width 300, -batchmode, ...) may follow."""
UNUSABLE = 2  # exit status, as argparse has it


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve one client. Ends when the client does."""
    parser = _parser()
    given, flags = parser.parse_known_args(arguments)
    try:
        planned = faults.parse(given.fault, given.once)
        simulator = Simulator.of(Rooms(given.data, given.split), "-batchmode" not in flags, planned.unknown)
        simulator.session.width = _number(flags, "-screen-width", 300)
        simulator.session.height = _number(flags, "-screen-height", 300)
        serve(_channel(), simulator, planned)
    except KeepError as error:
        parser.exit(UNUSABLE, f"error: {error}\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m envs.alfred.thor_stub",
        description=ABOUT,
        epilog=f"--fault SPEC: {faults.HELP}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,  # -h would be found in other flags
        allow_abbrev=False,
    )
    parser.add_argument("--help", action="help", help="show this and exit")
    parser.add_argument("--data", metavar="FOLDER", help="ALFRED's json_2.1.0; adds its floor plans to the houses")
    parser.add_argument(
        "--split",
        metavar="NAME",
        action="append",
        default=[],
        help="whose trials say what lies about in a floor plan; may be repeated (all splits that are folders)",
    )
    parser.add_argument("--fault", metavar="SPEC", action="append", default=[], help="see below; may be repeated")
    parser.add_argument(
        "--once", metavar="FILE", type=Path, help="no faults if it exists; it is created when the first one happens"
    )
    return parser


def _number(flags: list[str], name: str, default: int) -> int:
    """Return the number behind a flag."""
    if name not in flags[:-1]:
        return default
    value = flags[flags.index(name) + 1]
    return int(value) if value.isdecimal() else default


def _channel() -> Channel:
    """Return the one that the client's environment variables name. Raises ConfigError where they name none."""
    server, client = (os.environ.get(f"AI2THOR_FIFO_{name}_PIPE_PATH") for name in ("SERVER", "CLIENT"))
    if os.environ.get("AI2THOR_SERVER_TYPE") == "WSGI":
        from envs.alfred.thor_stub.protocol.http import Http

        host, port = os.environ.get("AI2THOR_HOST", "127.0.0.1"), os.environ.get("AI2THOR_PORT", "0")
        return Http(host, int(port), os.environ.get("AI2THOR_CLIENT_TOKEN", ""))
    if server and client:
        return Pipes(server, client)
    raise ConfigError("no client: neither AI2THOR_SERVER_TYPE=WSGI nor the AI2THOR_FIFO_..._PIPE_PATH are set")


if __name__ == "__main__":
    main()
