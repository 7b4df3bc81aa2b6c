"""What our side of AI2-THOR costs per skill: `python -m benchmarks.thor [--data FOLDER --split NAME] [--episodes N]`.

The expert plays; of every step of the environment the time that the client and the simulator took is subtracted. What
remains is ours: choosing the instance, checking the rules, ranking poses, reading what the simulator says, telling it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import islice
from statistics import median, quantiles
from time import perf_counter

from envs.alfred.env import AlfredEnv
from envs.alfred.episodes import load_episodes
from envs.alfred.scene import Episode
from keep_agent.errors import KeepError

SKILLS = ("lota", "grounded")
REQUIRED = 2.0  # ms per skill


def skills_of(env: AlfredEnv, episodes: Sequence[Episode]) -> Iterator[tuple[float, float, int]]:
    """Per skill: our milliseconds, the others', round trips."""
    setting, thor = env.setting, env.setting.simulator
    expert = setting.expert()
    for episode in episodes:
        _, info = env.reset(options={"episode": episode})
        for _ in range(setting.max_steps):
            skill = expert.act(info["world"], info["task"], info["knowledge"])
            if skill == "done":
                break
            trips, theirs, start = thor.trips, thor.seconds, perf_counter()
            _, _, _, _, info = env.step(skill)
            whole, theirs = perf_counter() - start, thor.seconds - theirs
            yield 1e3 * (whole - theirs), 1e3 * theirs, thor.trips - trips


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder json_2.1.0 (default: embedded houses)")
    parser.add_argument("--split", default=None)
    parser.add_argument("--episodes", type=int, default=40)
    parser.add_argument("--executable", default="stand-in", help="of AI2-THOR (default: %(default)s)")
    given = parser.parse_args()
    split = given.split or ("valid_seen" if given.data else "test")
    episodes = list(islice(load_episodes(given.data, split), given.episodes))
    print(f"{'skills':10}{'ours p50':>10}{'p95':>8}{'theirs p50':>12}{'round trips':>13}{'skills done':>13}")
    for skills in SKILLS:
        simulator = {"executable": given.executable}
        env = AlfredEnv(given.data, split, skills=skills, episodes=episodes, backend="thor", thor=simulator)
        with closing(env):
            print(row(skills, list(skills_of(env, episodes))))


def row(skills: str, measured: Sequence[tuple[float, float, int]]) -> str:
    """A line of the table."""
    ours, theirs, trips = zip(*measured, strict=True)
    p50, p95 = median(ours), quantiles(ours, n=20)[-1]
    cells = f"{skills:10}{p50:8.2f}ms{p95:6.2f}ms{median(theirs):10.2f}ms{sum(trips) / len(trips):13.1f}{len(ours):13}"
    return cells if p50 <= REQUIRED else f"{cells}  p50 is over {REQUIRED} ms"


if __name__ == "__main__":
    try:
        main()
    except KeepError as error:
        raise SystemExit(f"error: {error}") from None
