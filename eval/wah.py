"""Command that plays Watch-And-Help: ``python -m eval.wah [planner=NAME] [env.data=PATH] ...``"""

from __future__ import annotations

from eval.common.run import world_command


def main() -> None:
    world_command("wah")


if __name__ == "__main__":
    main()
