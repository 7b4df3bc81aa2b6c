"""List of Watch-And-Help tasks in a folder of plans and apartments: `python -m benchmarks.wah_tasks --data FOLDER`.

Each line shows a task's id, apartment and goal, and the initial places of the objects in the goal. ``--expert`` also
prints the number of tasks that the scripted expert solves under LoTA-Bench's rules.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence

from envs.setting import demonstrate, goal_reached
from envs.wah.data.official import DEFAULT_SPLIT
from envs.wah.goals import parse_goal
from envs.wah.scene import Episode
from envs.wah.setting import WahSetting
from envs.wah.spec import load_episodes
from envs.wah.state import HomeState
from keep_agent.errors import KeepError


def places(home: HomeState, episode: Episode) -> Iterator[str]:
    """Yield a text like ``apple_1 in fridge_1`` for every instance of an object in the goal."""
    name = home.things.name
    for kind in sorted({condition.thing for condition in parse_goal(episode.tasks[0].goal) if condition.thing}):
        for thing in home.graph.of_class(kind):
            holder = home.holder(thing)
            where = home.graph.room(thing) if holder is None else holder
            yield f"{name(thing)} {'in' if home.hidden_in(thing) else 'on'} {name(where)}"


def solved(setting: WahSetting, episode: Episode) -> bool:
    """Return whether the scripted expert reaches the goal within the limit of skills."""
    home, task = setting.begin(episode), episode.tasks[0]
    demonstrate(setting, home, task, setting.max_steps)
    return goal_reached(setting, home, task)


def show(episodes: Sequence[Episode], with_expert: bool) -> None:
    """Print the tasks."""
    setting, won = WahSetting(), 0
    for episode in episodes:
        task = episode.tasks[0]
        goal = " ".join(f"{predicate}:{count}" for predicate, count in task.goal)
        print(f"{episode.id}  {episode.scene.id}  {goal}  |  {', '.join(places(setting.begin(episode), episode))}")
        won += with_expert and solved(setting, episode)
    print(f"{len(episodes)} tasks" + (f", {won} solved by the scripted expert" if with_expert else ""))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder with apartments/ and tasks/")
    parser.add_argument("--seed", type=int, default=0, help="seed of the initial places (default 0)")
    parser.add_argument("--expert", action="store_true", help="let the scripted expert play the tasks")
    arguments = parser.parse_args()
    try:
        show(load_episodes(arguments.data, DEFAULT_SPLIT, seed=arguments.seed), arguments.expert)
    except KeepError as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
