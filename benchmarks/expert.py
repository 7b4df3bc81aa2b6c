"""Benchmark of the scripted expert: success rate and decisions per second.

    python -m benchmarks.expert                                    # 1,000 generated tasks in all settings
    python -m benchmarks.expert --data PATH/json_2.1.0 --split valid_seen
    python -m benchmarks.expert --skills grounded --observability partial --stream 5

Failures are listed with the executed skills. Exit codes: 1 if a task in a generated house fails, 2 for invalid input.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter

from rich.progress import track

from envs.alfred.env import AlfredEnv
from envs.alfred.experts.expert import Expert
from envs.alfred.goals import MATCHINGS
from envs.alfred.scene import Episode
from envs.alfred.setting import MAX_STEPS
from envs.alfred.spec import load_episodes
from envs.setting import OBSERVABILITIES, TaskResult
from keep_agent.errors import KeepError

SETTINGS = (("lota", "full"), ("grounded", "full"), ("grounded", "partial"))


@dataclass
class Tally:
    """Counts over all tasks of one setting."""

    tasks: Counter[str] = field(default_factory=Counter)
    solved: Counter[str] = field(default_factory=Counter)
    true_at_start: int = 0
    steps: list[int] = field(default_factory=list)
    failed_skills: int = 0
    decisions: int = 0
    seconds: float = 0.0  # time of all decisions
    failures: list[str] = field(default_factory=list)


def play(env: AlfredEnv, expert: Expert, index: int, tally: Tally) -> None:
    """Play one episode and count its tasks."""
    _, info = env.reset(options={"episode": index})
    tally.true_at_start += info["success"]
    over, skills = False, []
    while not over:
        start = perf_counter()
        skill = expert.act(info["world"], info["task"], info["knowledge"])
        tally.seconds += perf_counter() - start
        tally.decisions += 1
        _, _, terminated, truncated, info = env.step(skill)
        over = terminated or truncated
        skills.append(skill)
        tally.failed_skills += not info["outcome_ok"]
        if (result := info["task_done"]) is not None:
            _count(env.episode, result, skills, tally)
            tally.true_at_start += info["success"] and not over
            skills = []


def _count(episode: Episode, result: TaskResult, skills: Sequence[str], tally: Tally) -> None:
    task = result.task
    tally.tasks[task.type] += 1
    tally.solved[task.type] += result.success
    tally.steps.append(result.steps)
    if not result.success:
        targets = [task.object_target, task.mrecep_target, task.parent_target or task.toggle_target]
        name = f"{episode.id} {task.type} {'-'.join(filter(None, targets))}{' sliced' if task.sliced else ''}"
        tally.failures.append(f"{name}: {result.met} of {result.total} after {', '.join(skills)}")


def report(tally: Tally, limit: int) -> str:
    """Format the success rates per task type, and at most ``limit`` failures."""
    total, solved = tally.tasks.total(), tally.solved.total()
    lines = [f"  {kind:<36}{tally.solved[kind]:>6} of {tally.tasks[kind]}" for kind in sorted(tally.tasks)]
    lines.append(f"  {'success':<36}{solved:>6} of {total}  {solved / total:.2%}")
    lines.append(f"  goals true at the start {tally.true_at_start}, failed skills {tally.failed_skills}")
    lines.append(f"  steps per task {sum(tally.steps) / total:.1f}, at most {max(tally.steps)}")
    lines.append(f"  decisions per second {tally.decisions / tally.seconds:,.0f}")
    lines += [f"  failed: {failure}" for failure in tally.failures[:limit]]
    return "\n".join(lines)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.expert", description=__doc__.split("\n")[0])
    parser.add_argument("--data", help="folder json_2.1.0 of official ALFRED; without it the embedded houses are used")
    parser.add_argument("--split", help="split (default: valid_seen with --data, test without)")
    parser.add_argument("--episodes", type=int, help="number of episodes (default: all with --data, 1,000 without)")
    parser.add_argument("--stream", type=int, default=1, help="consecutive tasks per generated house (default 1)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the generated episodes (default 0)")
    parser.add_argument("--skills", choices=sorted(MAX_STEPS), help="skill set (default: the standard settings)")
    parser.add_argument("--observability", choices=OBSERVABILITIES, help="observability (default: standard settings)")
    parser.add_argument("--goal-matching", choices=MATCHINGS, default="type", help="default: type")
    parser.add_argument("--max-steps", type=int, help="per task (default 25 lota, 60 grounded)")
    parser.add_argument("--shown", type=int, default=50, help="failures to list (default 50)")
    return parser.parse_args()


def _settings(skills: str | None, observability: str | None) -> list[tuple[str, str]]:
    matches = [(s, o) for s, o in SETTINGS if skills in (None, s) and observability in (None, o)]
    return matches or [(skills or "lota", observability or "full")]


def run(arguments: argparse.Namespace) -> int:
    """Print the report of every setting; return the exit code."""
    split = arguments.split or ("valid_seen" if arguments.data else "test")
    limit = arguments.episodes or (None if arguments.data else 1000)
    episodes = load_episodes(arguments.data, split, stream=arguments.stream, seed=arguments.seed, limit=limit)
    failed = 0
    for skills, observability in _settings(arguments.skills, arguments.observability):
        env = AlfredEnv(
            episodes=episodes,
            skills=skills,
            observability=observability,
            goal_matching=arguments.goal_matching,
            max_steps=arguments.max_steps,
        )
        tally, expert = Tally(), Expert(skills, observability)
        for index in track(range(len(episodes)), f"{skills} + {observability}", transient=True):
            play(env, expert, index, tally)
        print(f"{skills} + {observability}: {split}, goal matching {arguments.goal_matching}")
        print(report(tally, arguments.shown))
        failed += len(tally.failures)
    return int(failed > 0 and arguments.data is None)


def main() -> int:
    """Run the command; invalid input gives a one-line error and exit code 2."""
    try:
        return run(_arguments())
    except KeepError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
