"""The exact prefix index over slots: rows of one session that another's prompt begins with too."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import torch

from keep_agent.errors import ConfigError
from memory.block import identity
from memory.index import chain_names
from memory.slots import SlotPool


class SlotIndex:
    """Blocks of ``block_size`` exact rows by name; it refers to their slots, so that dropping them frees nothing here.

    Beyond ``budget`` tokens the block used longest ago is let go, the end of a prefix before its beginning.
    """

    def __init__(self, pool: SlotPool, block_size: int, budget: int, model_key: str) -> None:
        self.pool, self.block_size, self.budget, self._key = pool, block_size, budget, model_key
        self._blocks: OrderedDict[str, torch.Tensor] = OrderedDict()
        pool.register(self)

    def names(self, token_ids: Sequence[int], namespace: str) -> list[str]:
        """Names of the full blocks of a prompt."""
        root = identity(f"slot chain of {self._key}", (), (), namespace).encode()
        return chain_names(root, token_ids, self.block_size)

    def match(self, names: Sequence[str]) -> torch.Tensor:
        """Slots of the longest prefix that is here."""
        found = []
        for name in names:
            if name not in self._blocks:
                break
            found.append(name)
        for name in reversed(found):
            self._blocks.move_to_end(name)
        return torch.cat([self.pool.none(), *(self._blocks[name] for name in found)])

    def insert(self, names: Sequence[str], slots: torch.Tensor, exact: int) -> None:
        """Protect the blocks ``names`` of a prompt whose rows lie in ``slots``; the first ``exact`` rows are exact.

        :raises ConfigError: for rows that are not
        """
        if len(names) * self.block_size > min(exact, slots.numel()):
            raise ConfigError("approximate keys and values may not enter the exact prefix index")
        for number, name in reversed(list(enumerate(names))):
            if name in self._blocks:
                self._blocks.move_to_end(name)
                continue
            block = slots[number * self.block_size : (number + 1) * self.block_size].clone()
            self.pool.share(block)
            self._blocks[name] = block
        while len(self._blocks) * self.block_size > self.budget:
            self.pool.release(self._blocks.popitem(last=False)[1])

    def forget(self, names: Sequence[str], own: torch.Tensor) -> None:
        """Let go of the blocks ``names``, unless somebody else than the holder of the slots ``own`` refers to them."""
        mine = np.zeros(self.pool.size, np.int32)
        np.add.at(mine, own.cpu().numpy(), 1)
        for name in names:
            block = self._blocks.get(name)
            if block is None:
                continue
            numbers = block.cpu().numpy()
            if (self.pool.references[numbers] == mine[numbers] + 1).all():
                self.pool.release(self._blocks.pop(name))

    def clear(self) -> None:
        while self._blocks:
            self.pool.release(self._blocks.popitem()[1])

    @property
    def slots(self) -> torch.Tensor:
        """All slots the index refers to."""
        return torch.cat([self.pool.none(), *self._blocks.values()])
