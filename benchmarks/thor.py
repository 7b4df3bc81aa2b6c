"""Benchmark of the AI2-THOR environment: `python -m benchmarks.thor [--data FOLDER --split NAME] [--episodes N]`.

The scripted expert plays. The environment's own time per skill is the duration of a step minus the time of simulator
and client. In this time it selects the instance, checks the rules, ranks poses, and translates requests and replies.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import islice
from statistics import median, quantiles
from time import perf_counter

from envs.alfred.env import AlfredEnv
from envs.alfred.scene import Episode
from envs.alfred.spec import load_episodes
from keep_agent.errors import KeepError

SKILLS = ("lota", "grounded")
REQUIRED = 2.0  # maximum median ms of the environment per skill


def skills_of(env: AlfredEnv, episodes: Sequence[Episode]) -> Iterator[tuple[float, float, int]]:
    """Yield for each skill the milliseconds of the environment, those of the simulator, and the round trips."""
    setting, thor = env.setting, env.setting.simulator
    expert = setting.expert()
    for episode in episodes:
        _, info = env.reset(options={"episode": episode})
        for _ in range(setting.max_steps):
            skill = expert.act(info["world"], info["task"], info["knowledge"])
            if skill == "done":
                break
            trips, before, start = thor.calls, thor.seconds, perf_counter()
            _, _, _, _, info = env.step(skill)
            whole, simulator = perf_counter() - start, thor.seconds - before
            yield 1e3 * (whole - simulator), 1e3 * simulator, thor.calls - trips


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder json_2.1.0 (default: embedded houses)")
    parser.add_argument("--split", default=None)
    parser.add_argument("--episodes", type=int, default=40)
    parser.add_argument("--executable", default="stand-in", help="AI2-THOR's executable (default: %(default)s)")
    args = parser.parse_args()
    split = args.split or ("valid_seen" if args.data else "test")
    episodes = list(islice(load_episodes(args.data, split), args.episodes))
    print(f"{'skills':10}{'env p50':>10}{'p95':>8}{'thor p50':>12}{'round trips':>13}{'skills done':>13}")
    for skills in SKILLS:
        simulator = {"executable": args.executable}
        env = AlfredEnv(args.data, split, skills=skills, episodes=episodes, backend="thor", thor=simulator)
        with closing(env):
            print(row(skills, list(skills_of(env, episodes))))


def row(skills: str, measured: Sequence[tuple[float, float, int]]) -> str:
    """Format a line of the table."""
    env, thor, trips = zip(*measured, strict=True)
    p50, p95 = median(env), quantiles(env, n=20)[-1]
    cells = f"{skills:10}{p50:8.2f}ms{p95:6.2f}ms{median(thor):10.2f}ms{sum(trips) / len(trips):13.1f}{len(env):13}"
    return cells if p50 <= REQUIRED else f"{cells}  p50 exceeds {REQUIRED} ms"


if __name__ == "__main__":
    try:
        main()
    except KeepError as error:
        raise SystemExit(f"error: {error}") from None
