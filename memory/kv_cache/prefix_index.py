"""Exact prefix index: it finds a stored block by a hash of the block's tokens and all tokens before the block."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
import torch

from keep_agent.errors import ConfigError
from memory.kv_cache.block import KVBlock
from memory.kv_cache.block_store import BlockLease, identity
from memory.kv_cache.kv_pool import KVPool


def chain_names(root: bytes, token_ids: Sequence[int], block_size: int) -> list[str]:
    """Name each full block of ``token_ids`` by a hash of ``root`` and of all tokens up to the block's end."""
    raw, names, parent = np.asarray(token_ids, "<u4").tobytes(), [], root
    step = 4 * block_size
    for stop in range(step, len(raw) + 1, step):
        name = hashlib.sha256(parent + raw[stop - step : stop]).hexdigest()
        names.append(name)
        parent = name.encode()
    return names


class PrefixIndex:
    """Index of the stored prefixes of prompts, in whole blocks of ``block_size`` tokens.

    A block's name is a hash of the context and of all tokens up to the block's end. So blocks with equal names have
    equal keys and values. Blocks that were computed without the tokens before them may not be inserted.
    """

    def __init__(
        self, lease: BlockLease, block_size: int, model_key: str, context: Sequence[int], namespace: str
    ) -> None:
        if block_size < 1:
            raise ConfigError(f"block_size={block_size} is too small for a block: use 1 token or more")
        self.block_size = block_size
        self._lease = lease
        self._root = identity(f"prefix chain of {model_key}", context, (), namespace).encode()

    def chain(self, token_ids: Sequence[int]) -> list[str]:
        """Name the full blocks of ``token_ids``."""
        return chain_names(self._root, token_ids, self.block_size)

    def match(self, chain: Sequence[str]) -> list[KVBlock]:
        """Return the stored blocks of the longest stored prefix of ``chain``.

        The last block is fetched first, so it is the least recently used of these blocks and is evicted first.
        """
        blocks: list[KVBlock] = []
        for name in reversed(list(takewhile(self._lease.contains, chain))):
            block = self._lease.get(name)
            if block is None:
                blocks.clear()
            else:
                blocks.append(block)
        return blocks[::-1]

    def insert(self, chain: Sequence[str], first: int, rows: KVBlock, exact: bool) -> None:
        """Store the blocks of ``chain`` from number ``first`` on, the last block first; ``rows`` are their KV.

        Raises ConfigError if the rows are not exact, or are not as many as the blocks need.
        """
        names = chain[first:]
        if not exact:
            raise ConfigError("approximate keys and values may not enter the exact prefix index: insert exact ones")
        if rows.tokens != len(names) * self.block_size:
            raise ConfigError(f"{len(names)} blocks of {self.block_size} tokens do not fit {rows.tokens} rows")
        keys, values = rows.k.split(self.block_size, 2), rows.v.split(self.block_size, 2)
        for name, k, v in reversed(list(zip(names, keys, values, strict=True))):
            self._lease.put(KVBlock(name, k.contiguous(), v.contiguous()))


@dataclass(frozen=True, slots=True)
class _Block:
    slots: torch.Tensor
    before: str | None  # name of the preceding block, without which this one cannot be matched


class SlotPrefixIndex:
    """Index of blocks of ``block_size`` exact rows in ``pool``. Indexed slots stay in use when all caches release them.

    Above ``budget`` tokens the least recently used block is evicted; of one prefix, the last block first. If two
    prompts diverge within a block, each has its own block there, and both blocks share the slots of the common rows.
    """

    def __init__(self, pool: KVPool, block_size: int, budget: int, model_key: str) -> None:
        self.pool, self.block_size, self.budget, self._key = pool, block_size, budget, model_key
        self._blocks: OrderedDict[str, _Block] = OrderedDict()  # in order of eviction: a prefix's last block first
        pool.register(self)

    def names(self, token_ids: Sequence[int], namespace: str) -> list[str]:
        """Name the full blocks of a prompt."""
        root = identity(f"slot chain of {self._key}", (), (), namespace).encode()
        return chain_names(root, token_ids, self.block_size)

    def __contains__(self, name: str) -> bool:
        return name in self._blocks

    def match(self, names: Sequence[str]) -> torch.Tensor:
        """Find the slots of the longest stored prefix. The caller holds ``pool.lock`` until a cache shares them."""
        with self.pool.lock:
            prefix = list(takewhile(self._blocks.__contains__, names))
            for name in reversed(prefix):
                self._blocks.move_to_end(name)
            return torch.cat([self.pool.no_slots(), *(self._blocks[name].slots for name in prefix)])

    def insert(self, names: Sequence[str], slots: torch.Tensor, exact_rows: int) -> None:
        """Add blocks ``names`` of rows in ``slots``. Raises ConfigError for rows after the first ``exact_rows``."""
        if len(names) * self.block_size > min(exact_rows, slots.numel()):
            raise ConfigError("approximate keys and values may not enter the exact prefix index")
        with self.pool.lock:
            for number, name in reversed(list(enumerate(names))):
                if name in self._blocks:
                    self._blocks.move_to_end(name)
                    continue
                block = slots[number * self.block_size : (number + 1) * self.block_size].clone()
                self.pool.share(block)
                self._blocks[name] = _Block(block, names[number - 1] if number else None)
            while len(self._blocks) * self.block_size > self.budget:
                self.pool.release(self._blocks.popitem(last=False)[1].slots)

    def forget(self, names: Sequence[str], cache_slots: torch.Tensor) -> None:
        """Delete the blocks ``names`` whose rows are not all in other caches, and the successors of deleted blocks.

        A cache that has only some rows of a block cannot use the block: its tokens diverge there, or it dropped rows.

        :param cache_slots: slots of the caller's own cache, which does not count as another cache
        """
        with self.pool.lock:
            references = self.pool.references.copy()  # after the next loop: references of other caches
            for slots in (cache_slots, self.slots):
                np.subtract.at(references, slots.cpu().numpy(), 1)
            for name in names:
                block = self._blocks.get(name)
                if block is not None and not (references[block.slots.cpu().numpy()] > 0).all():
                    self.pool.release(self._blocks.pop(name).slots)
            for name, block in reversed(list(self._blocks.items())):
                if block.before is not None and block.before not in self._blocks:
                    self.pool.release(self._blocks.pop(name).slots)

    def clear(self) -> None:
        with self.pool.lock:
            while self._blocks:
                self.pool.release(self._blocks.popitem()[1].slots)

    @property
    def slots(self) -> torch.Tensor:
        """All slots the index refers to."""
        with self.pool.lock:
            return torch.cat([self.pool.no_slots(), *(block.slots for block in self._blocks.values())])
