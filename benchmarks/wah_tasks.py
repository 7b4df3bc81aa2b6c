"""The tasks of a folder of plans and apartments, as they are laid out: `python -m benchmarks.wah_tasks --data FOLDER`.

One line a task: its id, apartment, goal, and where each thing that the goal asks for lies at the start. With
``--expert`` also how many of them the scripted expert solves under LoTA-Bench's rules.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence

from envs.setting import demonstrate, goal_reached
from envs.wah.episodes import load_episodes
from envs.wah.goals import parse_goal
from envs.wah.scene import Episode
from envs.wah.setting import WahSetting
from envs.wah.state import HomeState
from keep_agent.errors import KeepError


def places(home: HomeState, episode: Episode) -> Iterator[str]:
    """``apple_1 in fridge_1`` for every instance of what the goal asks for."""
    name = home.things.name
    for kind in sorted({one.thing for one in parse_goal(episode.tasks[0].goal) if one.thing}):
        for thing in home.graph.of_class(kind):
            holder = home.holder(thing)
            where = home.graph.room(thing) if holder is None else holder
            yield f"{name(thing)} {'in' if home.hidden_in(thing) else 'on'} {name(where)}"


def solved(setting: WahSetting, episode: Episode) -> bool:
    """Whether the scripted expert reaches the goal within the limit of skills."""
    home, task = setting.begin(episode), episode.tasks[0]
    demonstrate(setting, home, task, setting.max_steps)
    return goal_reached(setting, home, task)


def tell(episodes: Sequence[Episode], with_expert: bool) -> None:
    """Print them."""
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
    parser.add_argument("--seed", type=int, default=0, help="where things lie (default 0)")
    parser.add_argument("--expert", action="store_true", help="let the scripted expert play them")
    arguments = parser.parse_args()
    try:
        tell(load_episodes(arguments.data, "", seed=arguments.seed), arguments.expert)
    except KeepError as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
