"""Exact prefix index: a hash chain over blocks of tokens. Approximate keys and values never enter it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import takewhile

import numpy as np

from keep_agent.errors import ConfigError
from memory.kv_cache.block import KVBlock, identity
from memory.kv_cache.block_lease import BlockLease


def chain_names(root: bytes, token_ids: Sequence[int], block_size: int) -> list[str]:
    """Name the full blocks of ``token_ids``: each by a hash of ``root`` and of all tokens up to the block's end."""
    raw, names, parent = np.asarray(token_ids, "<u4").tobytes(), [], root
    step = 4 * block_size
    for stop in range(step, len(raw) + 1, step):
        name = hashlib.sha256(parent + raw[stop - step : stop]).hexdigest()
        names.append(name)
        parent = name.encode()
    return names


class PrefixIndex:
    """Finds the longest stored prefix of a prompt, in whole blocks of ``block_size`` tokens.

    A block is named by the context and all tokens up to its end, so that equal names mean equal exact keys and values.
    The names lie in a space of their own: no unit that was encoded in isolation can be found here.
    """

    def __init__(self, lease: BlockLease, block_size: int, model_key: str, context: Sequence[int], space: str) -> None:
        if block_size < 1:
            raise ConfigError(f"block_size={block_size} tokens is no block: use 1 or more")
        self.block_size = block_size
        self._lease = lease
        self._root = identity(f"prefix chain of {model_key}", context, (), space).encode()

    def chain(self, token_ids: Sequence[int]) -> list[str]:
        """Name the full blocks of ``token_ids``."""
        return chain_names(self._root, token_ids, self.block_size)

    def match(self, chain: Sequence[str]) -> list[KVBlock]:
        """Get the stored blocks of the longest prefix of ``chain``.

        They are fetched from the end: a storage that evicts the least recently used then evicts the beginning last,
        without which the rest is useless.
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
        """Store the blocks of ``chain`` from number ``first`` on, the last one first; ``rows`` are their KV.

        Raises ConfigError if the rows are not exact, or are not as many as the blocks need.
        """
        names = chain[first:]
        if not exact:
            raise ConfigError("approximate keys and values may not enter the exact prefix index")
        if rows.tokens != len(names) * self.block_size:
            raise ConfigError(f"{len(names)} blocks of {self.block_size} tokens do not fit {rows.tokens} rows")
        keys, values = rows.k.split(self.block_size, 2), rows.v.split(self.block_size, 2)
        for name, k, v in reversed(list(zip(names, keys, values, strict=True))):
            self._lease.put(KVBlock(name, k.contiguous(), v.contiguous()))
