"""Command that plays ALFWorld in ALFWorld's engine: ``python -m eval.alfworld env.data=FOLDER [planner=NAME] ...``"""

from __future__ import annotations

from eval.common.run import world_command


def main() -> None:
    world_command("alfworld")


if __name__ == "__main__":
    main()
