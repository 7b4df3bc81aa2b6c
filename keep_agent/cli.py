"""Command ``keep-agent``. It imports only the module of the subcommand that runs, so ``--help`` loads no torch."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module

from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from rich.console import Console
from rich.table import Table

import keep_agent
from keep_agent.console import make_console
from keep_agent.errors import ConfigError, check_choice
from keep_agent.guard import guarded
from keep_agent.startup import start_up

# memory methods whose keys and values equal full recomputation of the same segments; a constant, since importing the
# methods would load torch
EXACT_METHODS = frozenset({"full_cache", "full_recompute", "karma", "llm_planner", "prefix_cache"})


def methods_table() -> Table:
    """Make a table of the memory methods: each stage's component, and whether its results equal full recomputation."""
    from memory.config.component_names import STAGES  # lazy: `start_up` must first check that `memory` is our package

    table = Table(title="memory methods: choose one by planner=NAME, or by memory=NAME to change only the memory")
    for heading in ("name", *STAGES, "layout", "paper", "result"):
        table.add_column(heading, no_wrap=heading == "name")
    with initialize_config_module("configs", version_base="1.3"):
        names = GlobalHydra.instance().config_loader().get_group_options("memory", ObjectType.CONFIG)
        methods = compose(None, [f"+memory@{name}={name}" for name in names])
    for name, memory in methods.items():
        stages = (memory[stage]["_target_"].rpartition(".")[2] for stage in STAGES)
        result = "exact" if name in EXACT_METHODS else "approximate"
        table.add_row(name, *stages, memory.layout, memory.paper or "–", result)
    return table


def _methods(arguments: Sequence[str], console: Console) -> None:
    argparse.ArgumentParser(prog="keep-agent methods", description="List the memory methods.").parse_args(arguments)
    console.print(methods_table())


def _run_module(module: str, arguments: Sequence[str], console: Console) -> None:
    """Run a module's command. Raises ConfigError for a missing library; the extra `server` has the optional ones."""
    try:
        command = import_module(module).main
    except ModuleNotFoundError as error:
        raise ConfigError(f"this command needs {error.name}: pip install 'keep-agent[server]'") from error
    command(arguments, console)


COMMANDS: Mapping[str, Callable[[Sequence[str], Console], None]] = {
    "methods": _methods,
    "phases": partial(_run_module, "keep_agent.scenarios.command"),
    "serve": partial(_run_module, "keep_agent.server.command"),
    "token": partial(_run_module, "keep_agent.server.auth.token_command"),
    "view": partial(_run_module, "keep_agent.viewer.command"),
}
HELP = (
    "methods: list the memory methods and their stages; phases: play a scenario with several phases and agents; "
    "serve: serve planning agents over HTTP; token: make or revoke an access token; view: show a recorded run"
)


def _run(command: str, arguments: Sequence[str]) -> None:
    check_choice("keep-agent COMMAND", command, COMMANDS)
    COMMANDS[command](arguments, make_console())


def main() -> None:
    """Run the command. Exit codes: 2 for bad input, with one line on standard error; 130 if interrupted."""
    start_up()
    parser = argparse.ArgumentParser(prog="keep-agent", description=keep_agent.__doc__)
    parser.add_argument("--version", action="version", version=f"keep-agent {keep_agent.__version__}")
    parser.add_argument("command", metavar=f"{{{','.join(COMMANDS)}}}", help=HELP)
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of COMMAND; COMMAND --help lists them")
    options = parser.parse_args()
    code = guarded(lambda: _run(options.command, options.arguments))
    if code:
        sys.exit(code)


if __name__ == "__main__":
    main()
