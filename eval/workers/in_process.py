"""This process alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from omegaconf import DictConfig

from eval.workers.base import Played
from eval.workers.player import Player


class Here:
    """One episode after another, in order."""

    def __init__(self, config: DictConfig) -> None:
        self._player = Player(config)
        self.setup = self._player.setup

    def play(self, indices: Sequence[int]) -> Iterator[Played]:
        return map(self._player.play, indices)

    def close(self) -> None:
        self._player.close()
