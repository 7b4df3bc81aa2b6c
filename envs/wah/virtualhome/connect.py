"""From a setting to a simulator: one that runs behind a URL, or a conversation that was recorded."""

from __future__ import annotations

from pathlib import Path

from envs.wah.virtualhome.client import Simulator
from envs.wah.virtualhome.recording import Replay
from envs.wah.virtualhome.transport import DEADLINE, TIMEOUT, HttpTransport, Transport
from keep_agent.errors import ConfigError


def connect(simulator: str, record: str | None = None) -> Simulator:
    """``simulator`` is a URL or a recording; ``record`` a new file that the conversation is written to.

    :raises ConfigError: for what is neither, and for a file that is there
    :raises SimulatorError: if nobody answers
    """
    transport = _transport(simulator)
    try:
        return Simulator(transport, record)
    except ConfigError:
        transport.close()
        raise


def _transport(simulator: str) -> Transport:
    if simulator.startswith("http://"):
        found = HttpTransport(simulator, TIMEOUT, DEADLINE)
        Simulator(found).check()
        return found
    if Path(simulator).is_file():
        return Replay(simulator)
    raise ConfigError(
        f"env.simulator={simulator} is neither the URL of a VirtualHome simulator, such as http://127.0.0.1:8080, "
        "nor a recorded conversation"
    )
