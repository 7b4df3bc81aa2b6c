"""Command that plays ALFRED: ``python -m eval.alfred [planner=NAME] [env.data=FOLDER env.split=valid_seen] ...``"""

from __future__ import annotations

from eval.common.run import world_command


def main() -> None:
    world_command("alfred")


if __name__ == "__main__":
    main()
