"""Survival of kills and damage: ``python -m benchmarks.damage [--kills N] [--damages N] [--seed N] [--markdown]``.

Processes are killed with SIGKILL at random moments: agents with a journal, agents that save, runs that are resumed.
Then files are damaged, one at a time, and read by everything that reads them: a flipped bit (half of the tries), a cut,
bytes appended, zeros, a piece repeated, and of files of lines a line that is missing. Each try ends in one of

    same        what was read is what had been written
    recomputed  keys and values that were lost are computed again: the tokens are the same, and a warning is logged
    cut off     a tail that no commit mark covers is left out, and a warning says so
    refused     an error in one sentence that names the file
    silent      something else was read, without a word
    raw         another error than ours: a traceback

Files without a checksum, which people write by hand, come last: a changed letter of a name cannot be noticed there.
The exit code is 1 if anything else was lost, read silently, or raw.
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from io import StringIO
from itertools import chain
from pathlib import Path

import torch
from rich.progress import Progress
from rich.table import Table

from benchmarks.kills import Killed, kill_durable, kill_eval, kill_save
from envs.outcome import Outcome
from eval.alfred import main as play
from eval.anatomy import read as anatomy
from eval.common.tables import show
from eval.compare import compare, load_runs
from eval.merge import load_part
from keep_agent.agent.agent import Agent
from keep_agent.agent.durable import JOURNAL, MEMORY, DurableAgent
from keep_agent.config.planner_factory import Brain, brain_of
from keep_agent.console import make_console
from keep_agent.errors import KeepError
from keep_agent.robots.mcap_log import episode_of, write_episode
from keep_agent.rollout.run_folder import CONFIG, EPISODES, SUMMARY, TRACE, RunFolder, find_runs
from keep_agent.rollout.trace import read_trace
from keep_agent.scenarios.scenario import find_scenario, shipped
from keep_agent.server.auth.token_file import add_token, read_tokens
from keep_agent.server.auth.tokens import Access, Entry, digest
from keep_agent.viewer.export.html import page
from keep_agent.viewer.runs import Library
from keep_agent.viewer.step_model import overview, step_view
from memory.agents.manager import AgentMemories
from memory.agents.text_match import TokenizerCoder
from memory.engine.models.load import load_model
from memory.engine.scheduler.scheduler import Scheduler
from memory.files.agent_files import entries
from memory.files.block_file import open_blocks, write_blocks
from memory.files.end_mark import end_of
from planners.tiny.checkpoint import BUNDLED

END = end_of(Path(EPISODES)).name
OUTCOMES = ("same", "recomputed", "cut off", "refused", "silent", "raw")
SKILLS = ["go to fridge 1", "done"]
TEXT = "".join(f"mug mug_{number} cabinet_{number % 7}\n" for number in range(1, 120))
Read = Callable[[], object]


@dataclass
class Target:
    """A file that is damaged, and one way to read it. ``answer``: keys and values may be lost, tokens may not."""

    what: str
    file: Path
    read: Read
    answer: bool = False
    counts: Counter[str] = field(default_factory=Counter)

    def attempt(self, rng: random.Random, whole: bytes, truth: object, heard: list[str]) -> None:
        """Damage the file once, read it, and put it back."""
        content = damaged(whole, rng, self.file.suffix == ".jsonl")
        if content == whole:
            return
        self.file.write_bytes(content)
        heard.clear()
        try:
            self.counts[self._outcome(truth, heard)] += 1
        finally:
            self.file.write_bytes(whole)

    def _outcome(self, truth: object, heard: Sequence[str]) -> str:
        try:
            same = self.read() == truth
        except KeepError:
            return "refused"
        except Exception:
            sys.stderr.write(f"{self.what}:\n{traceback.format_exc()}")
            return "raw"
        if same:
            return "recomputed" if self.answer and heard else "same"
        return "cut off" if heard and not self.answer else "silent"


def damaged(raw: bytes, rng: random.Random, lines: bool) -> bytes:
    """The content of a file with one damage."""
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


def agents(brain: Brain, folder: Path) -> Iterator[Target]:
    """Targets: what a durable agent and a saved one leave behind."""
    kept, copy, saved = folder / "kept", folder / "copy", folder / "saved.memory"
    agent = DurableAgent(Agent(brain.planner("x"), "x", ahead=False), kept)
    for number in range(30):
        agent.observe([{"id": f"mug_{number}", "category": "object", "type": "mug", "place": f"cabinet_{number % 5}"}])
        if number % 5 == 0:
            agent.plan("put a mug in the fridge", SKILLS)
            agent.report(Outcome(True))
        if number == 15:
            agent.compact()
    agent.agent.save(saved)
    agent.close(write=False)  # as a kill leaves it

    def opened() -> object:
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(kept, copy)
        again = DurableAgent(Agent(brain.planner("x"), "x", ahead=False), copy)
        try:
            return again.dump()
        finally:
            again.close(write=False)

    def loaded() -> object:
        other = Agent(brain.planner("y"), "x", ahead=False)
        other.load(saved)
        return other.dump()

    yield Target("memory of an agent, opened", kept / MEMORY, opened)
    yield Target("journal of an agent, opened", kept / JOURNAL, opened)
    yield Target("end mark of the journal, opened", end_of(kept / JOURNAL), opened)
    yield Target("Agent.save, loaded", saved, loaded)


def runs(folder: Path) -> Iterator[Target]:
    """Targets: the files of a run, by everything that reads them."""
    sys.argv = ["eval.alfred", "planner=random", "eval.episodes=6", "eval.shard=0/1", f"eval.out={folder / 'runs'}"]
    with redirect_stdout(StringIO()), suppress(SystemExit):
        play()
    (run,) = find_runs(folder / "runs")
    copy, log = folder / "resumed", folder / "episode.mcap"

    def resumed() -> object:
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(run, copy)
        again = RunFolder.resume(copy)
        again.release()
        return again.results, again.config, (copy / TRACE).read_bytes()

    def viewed() -> object:
        (found,) = Library(run).runs()
        told = [
            (overview(found, one), [step_view(found, one, step).to_json() for step in range(len(one.places))])
            for one in found.index.refresh().values()
        ]
        if found.index.problem:
            raise KeepError(found.index.problem)
        return json.dumps(told)

    def exported() -> object:
        (found,) = Library(run).runs()
        pages = [page(found, one) for one in found.index.refresh().values()]
        if found.index.problem:
            raise KeepError(found.index.problem)
        return pages

    def logged() -> object:
        write_episode(episode_of(run, "0"), log, run)
        return sha256(log.read_bytes()).hexdigest()

    compared = lambda: repr(compare(*load_runs([run]) * 2))  # noqa: E731
    merged = lambda: asdict(load_part(run))  # noqa: E731
    readers: dict[str, tuple[Read, Sequence[str]]] = {
        "resumed": (resumed, (CONFIG, EPISODES, END, TRACE, SUMMARY)),
        "compared": (compared, (CONFIG, EPISODES, END, SUMMARY)),
        "merged": (merged, (CONFIG, EPISODES, END, SUMMARY)),
        "viewed": (viewed, (CONFIG, EPISODES, END, TRACE)),
        "exported as HTML": (exported, (TRACE,)),
        "exported as MCAP": (logged, (TRACE,)),
        "read by eval.anatomy": (lambda: repr(anatomy(read_trace(run / TRACE))), (TRACE,)),
    }
    for how, (read, names) in readers.items():
        yield from (Target(f"{name} of a run, {how}", run / name, read) for name in names)


def blocks(brain: Brain, folder: Path) -> Iterator[Target]:
    """Targets: keys and values on the disk."""
    file, root = folder / "blocks.safetensors", folder / "agents"
    tensors = {"k": torch.randn(6, 4, 8, 8), "v": torch.randn(6, 4, 8, 8).half()}
    write_blocks(file, tensors, {"about": list(range(30))}, {"open": torch.randn(3, 3)})

    def verified() -> object:
        found = open_blocks(file)
        found.verify()
        held = [found.tensor("k"), found.tensor("v"), found.extra("open")]
        return [tensor.tolist() for tensor in held], found.header

    yield Target("block file, read", file, verified)
    coder = TokenizerCoder(brain.tokenizer)

    def answered(text: str = f"{TEXT}next go to cabinet_2\n", where: Path | None = None) -> object:
        copy = where or folder / "served"
        if where is None:
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(root, copy)
        with AgentMemories(brain.engine, coder, folder=copy) as memories, Scheduler(brain.engine) as scheduler:
            prompt = memories.open("robot_a", text)
            tokens = list(scheduler.submit("robot_a", prompt.cache, prompt.new, max_new_tokens=6))
            memories.finish(prompt)
        return tokens

    answered(TEXT, root)
    entries(root)  # writes the index
    (rows,) = root.glob("*.safetensors")
    yield Target("rows of an agent, served", rows, answered, answer=True)
    yield Target("index of the agents' files, served", root / "index.json", answered, answer=True)


def texts(folder: Path) -> Iterator[Target]:
    """Targets: files without a checksum."""
    tokens, scenario = folder / "tokens.json", folder / "scenario.yaml"
    add_token(tokens, Entry(Access("kitchen", frozenset(["alpha"])), digest("secret")))
    shutil.copy(next(iter(shipped().values())), scenario)
    yield Target("tokens file", tokens, lambda: repr(read_tokens(tokens)))
    yield Target("scenario", scenario, lambda: repr(find_scenario(str(scenario))))


def damage_all(targets: Sequence[Target], tries: int, rng: random.Random, tick: Callable[[], None]) -> None:
    """Damage each target equally often, ``tries`` together."""
    with hearing() as heard:
        for number, target in enumerate(targets):
            whole, truth = target.file.read_bytes(), target.read()
            share = tries * (number + 1) // len(targets) - tries * number // len(targets)
            while target.counts.total() < share:
                target.attempt(rng, whole, truth, heard)
                tick()


@contextmanager
def hearing() -> Iterator[list[str]]:
    """Warnings that are logged meanwhile; nothing of them is shown."""
    heard: list[str] = []

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.append(record.getMessage())

    ear, root = Ear(logging.WARNING), logging.getLogger()
    root.addHandler(ear)
    try:
        yield heard
    finally:
        root.removeHandler(ear)


def make_brain() -> Brain:
    """The bundled model with KEEP."""
    return brain_of(["planner=keep", "eval.threads=1", "prompt.encoder=hashed", "prompt.examples=0"])


def kill_all(folder: Path, kills: int, rng: random.Random, tick: Callable[[], None]) -> list[Killed]:
    """Half of the kills hit agents with a journal, a quarter agents that save, a quarter runs."""
    quarter = kills // 4
    rounds = (
        kill_durable(make_brain, folder / "durable", kills - 2 * quarter, rng),
        kill_save(make_brain, folder / "save.memory", quarter, rng),
        kill_eval(folder / "eval", quarter, rng),
    )
    found: dict[str, Killed] = {}
    for one in chain.from_iterable(rounds):
        found[one.what] = one
        tick()
    return list(found.values())


def kill_table(rows: Sequence[Killed]) -> Table:
    table = Table(title="killed with SIGKILL")
    for name in ("what", "kills", "lost", "raw"):
        table.add_column(name, justify="left" if name == "what" else "right")
    for row in rows:
        table.add_row(row.what, *map(str, (row.tries, row.lost, row.raw)))
    table.add_row("all", *(str(sum(values)) for values in zip(*((r.tries, r.lost, r.raw) for r in rows), strict=True)))
    return table


def damage_table(targets: Sequence[Target], title: str) -> Table:
    table = Table(title=title)
    for name in ("what", "tries", *OUTCOMES):
        table.add_column(name, justify="left" if name == "what" else "right")
    total: Counter[str] = Counter()
    for target in targets:
        total += target.counts
        table.add_row(target.what, str(target.counts.total()), *(str(target.counts[name]) for name in OUTCOMES))
    table.add_row("all", str(total.total()), *(str(total[name]) for name in OUTCOMES))
    return table


def parser() -> argparse.ArgumentParser:
    described = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    described.add_argument("--kills", type=int, default=200, metavar="N", help="processes that are killed (200)")
    described.add_argument("--damages", type=int, default=2500, metavar="N", help="files that are damaged (2500)")
    described.add_argument("--seed", type=int, default=0, metavar="N")
    described.add_argument("--markdown", action="store_true", help="for a document")
    return described


def main() -> None:
    arguments = parser().parse_args()
    rng, console = random.Random(arguments.seed), make_console()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        # no thread draws the bar: a process that has some cannot be forked safely
        bar = stack.enter_context(Progress(console=make_console(stderr=True), transient=True, auto_refresh=False))
        done = bar.add_task("kills", total=arguments.kills)
        of_runs = list(runs(folder))  # before the kills: it imports what their processes need
        load_model(str(BUNDLED), "float32")
        killed = kill_all(folder, arguments.kills, rng, lambda: bar.update(done, advance=1, refresh=True))
        brain = make_brain()
        checked = [*agents(brain, folder), *of_runs, *blocks(brain, folder)]
        free = list(texts(folder))
        done = bar.add_task("damages", total=arguments.damages)
        damage_all([*checked, *free], arguments.damages, rng, lambda: bar.update(done, advance=1, refresh=True))
        brain.engine.close()
    if arguments.kills:
        show(kill_table(killed), arguments.markdown, console)
    if arguments.damages:
        show(damage_table(checked, "damaged files"), arguments.markdown, console)
        show(damage_table(free, "files without a checksum"), arguments.markdown, console)
    bad = sum(one.lost + one.raw for one in killed) + sum(one.counts["raw"] for one in free)
    bad += sum(one.counts["silent"] + one.counts["raw"] for one in checked)
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
