"""Robustness test against kills and damage: ``python -m benchmarks.damage [--kills N] [--damages N] [--seed N]``.

Processes are killed with SIGKILL at random times: agents with a journal, agents that save, and resumed runs. Then files
are damaged, one at a time, and read by all their readers. A damage is a flipped bit (most often), a truncation,
appended bytes, zeros, a repeated piece or, in files of lines, a missing line. Each try has one of these outcomes:

    same        the reader returns what was written
    recomputed  lost keys and values are computed again: the tokens are the same, and a warning is logged
    cut off     a tail without a commit mark is ignored, and a warning is logged
    refused     a one-sentence error names the file
    silent      the reader returns something else, without error or warning
    raw         an unexpected error with a traceback

Files that people write by hand have no checksum, so a changed letter cannot be detected; their table is separate.
The exit code is 1 if acknowledged data were lost, a file with a checksum was read silently, or any error was raw.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from io import StringIO
from itertools import chain
from pathlib import Path

import torch
from rich.progress import Progress
from rich.table import Table

from benchmarks.kills import KillResult, kill_durable, kill_eval, kill_save
from envs.outcome import Outcome
from eval.alfred import main as play
from eval.anatomy import totals as anatomy
from eval.common.tables import show, table_of
from eval.compare import compare, load_runs
from eval.merge import load_shard
from keep_agent.agent.agent import Agent
from keep_agent.agent.durable import JOURNAL, MEMORY, DurableAgent
from keep_agent.config.planner_factory import PlannerResources, make_resources
from keep_agent.console import make_console
from keep_agent.errors import KeepError
from keep_agent.robots.mcap_log import episode_of, write_episode
from keep_agent.rollout.run_folder import CONFIG, EPISODES, SUMMARY, TRACE, RunFolder, find_runs
from keep_agent.rollout.trace import read_trace
from keep_agent.scenarios.scenario import find_scenario, shipped
from keep_agent.server.auth.token_file import add_token, read_tokens
from keep_agent.server.auth.tokens import Access, TokenEntry, digest
from keep_agent.viewer.export.html import page
from keep_agent.viewer.runs import Run, RunLibrary
from keep_agent.viewer.step_model import overview, step_view
from keep_agent.viewer.trace_index import EpisodeIndex
from memory.agents.manager import AgentMemories
from memory.agents.text_match import TokenizerCoder
from memory.engine.models.load import load_model
from memory.engine.scheduler.scheduler import Scheduler
from memory.files.agent_files import entries
from memory.files.block_file import open_blocks, write_blocks
from memory.files.end_mark import end_of
from planners.bundled import BUNDLED

END = end_of(Path(EPISODES)).name
OUTCOMES = ("same", "recomputed", "cut off", "refused", "silent", "raw")
SKILLS = ["go to fridge 1", "done"]
TEXT = "".join(f"mug mug_{number} cabinet_{number % 7}\n" for number in range(1, 120))
Read = Callable[[], object]


@dataclass
class Target:
    """A file to damage, and one way to read it."""

    name: str
    file: Path
    read: Read
    answer: bool = False  # the reader returns tokens, which must not change even if keys and values are lost
    counts: Counter[str] = field(default_factory=Counter)

    def attempt(self, rng: random.Random, whole: bytes, truth: object, warnings: list[str]) -> None:
        """Damage the file once, read it, and restore it."""
        content = damage(whole, rng, self.file.suffix == ".jsonl")
        if content == whole:
            return
        self.file.write_bytes(content)
        warnings.clear()
        try:
            self.counts[self._outcome(truth, warnings)] += 1
        finally:
            self.file.write_bytes(whole)

    def _outcome(self, truth: object, warnings: Sequence[str]) -> str:
        try:
            same = self.read() == truth
        except KeepError:
            return "refused"
        except Exception:
            sys.stderr.write(f"{self.name}:\n{traceback.format_exc()}")
            return "raw"
        if same:
            return "recomputed" if self.answer and warnings else "same"
        return "cut off" if warnings and not self.answer else "silent"


def damage(raw: bytes, rng: random.Random, lines: bool) -> bytes:
    """Return a file's content with one random damage."""
    kind = rng.choice(["flip"] * 6 + ["cut", "append", "zeros", "repeat"] + ["line"] * 2 * lines)
    place, length = rng.randrange(len(raw)), rng.randint(1, 64)
    if kind == "flip":
        return raw[:place] + bytes([raw[place] ^ 1 << rng.randrange(8)]) + raw[place + 1 :]
    if kind == "cut":
        return raw[:place]
    if kind == "append":
        return raw + rng.randbytes(length)
    if kind == "zeros":
        return raw[:place] + bytes(len(raw[place : place + length])) + raw[place + length :]
    if kind == "repeat":
        return raw[:place] + raw[place : place + length] + raw[place:]
    whole = raw.splitlines(keepends=True)
    del whole[rng.randrange(len(whole))]
    return b"".join(whole)


def agents(resources: PlannerResources, folder: Path) -> Iterator[Target]:
    """Yield a target for each file of a durable agent and of a saved agent."""
    original, copy, saved = folder / "original", folder / "copy", folder / "saved.memory"
    agent = DurableAgent(Agent(resources.planner("x"), "x", ahead=False), original)
    for number in range(30):
        agent.observe([{"id": f"mug_{number}", "category": "object", "type": "mug", "place": f"cabinet_{number % 5}"}])
        if number % 5 == 0:
            agent.plan("put a mug in the fridge", SKILLS)
            agent.report(Outcome(True))
        if number == 15:
            agent.compact()
    agent.agent.save(saved)
    agent.close(write=False)  # the state after a kill

    def open_copy() -> object:
        reset_copy(original, copy)
        reopened = DurableAgent(Agent(resources.planner("x"), "x", ahead=False), copy)
        try:
            return reopened.dump()
        finally:
            reopened.close(write=False)

    def load_saved() -> object:
        agent = Agent(resources.planner("y"), "x", ahead=False)
        agent.load(saved)
        return agent.dump()

    yield Target("memory of an agent, opened", original / MEMORY, open_copy)
    yield Target("journal of an agent, opened", original / JOURNAL, open_copy)
    yield Target("end mark of the journal, opened", end_of(original / JOURNAL), open_copy)
    yield Target("Agent.save, loaded", saved, load_saved)


def reset_copy(source: Path, copy: Path) -> None:
    """Replace the folder ``copy`` by a copy of ``source``."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(source, copy)


def runs(folder: Path) -> Iterator[Target]:
    """Yield a target for each file of a run and each of its readers."""
    sys.argv = ["eval.alfred", "planner=random", "eval.episodes=6", "eval.shard=0/1", f"eval.out={folder / 'runs'}"]
    with redirect_stdout(StringIO()), suppress(SystemExit):
        play()
    (run,) = find_runs(folder / "runs")
    copy, log = folder / "resumed", folder / "episode.mcap"

    def resume() -> object:
        reset_copy(run, copy)
        resumed = RunFolder.resume(copy)
        resumed.release()
        return resumed.results, resumed.config, (copy / TRACE).read_bytes()

    def view(render: Callable[[Run, EpisodeIndex], object]) -> list[object]:
        (viewed,) = RunLibrary(run).runs()
        views = [render(viewed, episode) for episode in viewed.index.refresh().values()]
        if viewed.index.problem:
            raise KeepError(viewed.index.problem)
        return views

    def steps(viewed: Run, episode: EpisodeIndex) -> str:
        views = [step_view(viewed, episode, step).to_json() for step in range(len(episode.positions))]
        return json.dumps((overview(viewed, episode), views))

    def export_mcap() -> object:
        write_episode(episode_of(run, "0"), log, run)
        return sha256(log.read_bytes()).hexdigest()

    readers: dict[str, tuple[Read, Sequence[str]]] = {
        "resumed": (resume, (CONFIG, EPISODES, END, TRACE, SUMMARY)),
        "compared": (lambda: repr(compare(*load_runs([run]) * 2)), (CONFIG, EPISODES, END, SUMMARY)),
        "merged": (lambda: asdict(load_shard(run)), (CONFIG, EPISODES, END, SUMMARY)),
        "viewed": (lambda: view(steps), (CONFIG, EPISODES, END, TRACE)),
        "exported as HTML": (lambda: view(page), (TRACE,)),
        "exported as MCAP": (export_mcap, (TRACE,)),
        "read by eval.anatomy": (lambda: repr(anatomy(read_trace(run / TRACE))), (TRACE,)),
    }
    for reader, (read, names) in readers.items():
        yield from (Target(f"{name} of a run, {reader}", run / name, read) for name in names)


def blocks(resources: PlannerResources, folder: Path) -> Iterator[Target]:
    """Yield a target for each file that stores keys and values, and for their index."""
    file, root = folder / "blocks.safetensors", folder / "agents"
    tensors = {"k": torch.randn(6, 4, 8, 8), "v": torch.randn(6, 4, 8, 8).half()}
    write_blocks(file, tensors, {"about": list(range(30))}, {"open": torch.randn(3, 3)})

    def verify() -> object:
        blocks = open_blocks(file)
        blocks.verify()
        contents = [blocks.tensor("k"), blocks.tensor("v"), blocks.extra("open")]
        return [tensor.tolist() for tensor in contents], blocks.header

    yield Target("block file, read", file, verify)
    coder = TokenizerCoder(resources.tokenizer)

    def answer(text: str, where: Path) -> object:
        with AgentMemories(resources.engine, coder, folder=where) as memories, Scheduler(resources.engine) as scheduler:
            prompt = memories.open("robot_a", text)
            tokens = list(scheduler.submit("robot_a", prompt.cache, prompt.new, max_new_tokens=6))
            memories.finish(prompt)
        return tokens

    def serve() -> object:
        reset_copy(root, folder / "served")
        return answer(f"{TEXT}next go to cabinet_2\n", folder / "served")

    answer(TEXT, root)
    entries(root)  # writes the index
    (rows,) = root.glob("*.safetensors")
    yield Target("rows of an agent, served", rows, serve, answer=True)
    yield Target("index of the agents' files, served", root / "index.json", serve, answer=True)


def texts(folder: Path) -> Iterator[Target]:
    """Yield a target for each kind of file without a checksum."""
    tokens, scenario = folder / "tokens.json", folder / "scenario.yaml"
    add_token(tokens, TokenEntry(Access("kitchen", frozenset(["alpha"])), digest("secret")))
    shutil.copy(next(iter(shipped().values())), scenario)
    yield Target("tokens file", tokens, lambda: repr(read_tokens(tokens)))
    yield Target("scenario", scenario, lambda: repr(find_scenario(str(scenario))))


def damage_all(targets: Sequence[Target], tries: int, rng: random.Random, tick: Callable[[], None]) -> None:
    """Damage each target equally often, ``tries`` times in total."""
    with record_warnings() as warnings:
        for number, target in enumerate(targets):
            whole, truth = target.file.read_bytes(), target.read()
            share = tries * (number + 1) // len(targets) - tries * number // len(targets)
            while target.counts.total() < share:
                target.attempt(rng, whole, truth, warnings)
                tick()


@contextmanager
def record_warnings() -> Iterator[list[str]]:
    """Collect the warnings that are logged within the context, instead of printing them."""
    warnings: list[str] = []

    class Recorder(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            warnings.append(record.getMessage())

    handler, root = Recorder(logging.WARNING), logging.getLogger()
    root.addHandler(handler)
    try:
        yield warnings
    finally:
        root.removeHandler(handler)


def small_resources() -> PlannerResources:
    """Make the bundled model with the `keep` planner."""
    return make_resources(["planner=keep", "eval.threads=1", "prompt.encoder=hashed", "prompt.examples=0"])


def kill_all(folder: Path, kills: int, rng: random.Random, tick: Callable[[], None]) -> list[KillResult]:
    """Kill agents with a journal (half of ``kills``), agents that save (a quarter) and runs (a quarter)."""
    quarter = kills // 4
    rounds = (
        kill_durable(small_resources, folder / "durable", kills - 2 * quarter, rng),
        kill_save(small_resources, folder / "save.memory", quarter, rng),
        kill_eval(folder / "eval", quarter, rng),
    )
    results: dict[str, KillResult] = {}
    for result in chain.from_iterable(rounds):
        results[result.name] = result
        tick()
    return list(results.values())


def count_table(title: str, headings: Sequence[str], rows: Mapping[str, Sequence[int]]) -> Table:
    """Return a table of counts by name, with their sums in the last row."""
    counts_by_name = {**rows, "all": map(sum, zip(*rows.values(), strict=True))}
    return table_of(title, ["target"], headings, ([name, *map(str, counts)] for name, counts in counts_by_name.items()))


def kill_table(results: Sequence[KillResult]) -> Table:
    rows = {result.name: (result.tries, result.losses, result.raw) for result in results}
    return count_table("killed with SIGKILL", ("kills", "lost", "raw"), rows)


def damage_table(targets: Sequence[Target], title: str) -> Table:
    rows = {t.name: (t.counts.total(), *(t.counts[outcome] for outcome in OUTCOMES)) for t in targets}
    return count_table(title, ("tries", *OUTCOMES), rows)


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200, metavar="N", help="number of kills (200)")
    parser.add_argument("--damages", type=int, default=2500, metavar="N", help="number of damages (2500)")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--markdown", action="store_true", help="print the tables in Markdown")
    return parser


def main() -> None:
    arguments = parser().parse_args()
    rng, console = random.Random(arguments.seed), make_console()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        # no refresh thread: a process with threads cannot be forked safely
        bar = stack.enter_context(Progress(console=make_console(stderr=True), transient=True, auto_refresh=False))
        done = bar.add_task("kills", total=arguments.kills)
        run_files = list(runs(folder))  # before the kills: it imports the modules that the forked processes need
        load_model(str(BUNDLED), "float32")
        results = kill_all(folder, arguments.kills, rng, lambda: bar.update(done, advance=1, refresh=True))
        resources = small_resources()
        checked = [*agents(resources, folder), *run_files, *blocks(resources, folder)]
        unchecked = list(texts(folder))
        done = bar.add_task("damages", total=arguments.damages)
        damage_all([*checked, *unchecked], arguments.damages, rng, lambda: bar.update(done, advance=1, refresh=True))
        resources.engine.close()
    if arguments.kills:
        show(kill_table(results), arguments.markdown, console)
    if arguments.damages:
        show(damage_table(checked, "damaged files"), arguments.markdown, console)
        show(damage_table(unchecked, "files without a checksum"), arguments.markdown, console)
    bad = sum(result.losses + result.raw for result in results) + sum(target.counts["raw"] for target in unchecked)
    bad += sum(target.counts["silent"] + target.counts["raw"] for target in checked)
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
