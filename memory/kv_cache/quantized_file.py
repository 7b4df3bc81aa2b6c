"""Quantized cache in a block file. A restored cache reads full blocks in the mapped file, without copying them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch

from keep_agent.errors import ConfigError, CorruptError, DataError
from memory.engine.models.model_spec import ModelSpec
from memory.files.block_file import BlockFile
from memory.kv_cache.quantization import Packed, PackFormat
from memory.kv_cache.quantized import BLOCK, Extent, QuantizedCache

PARTS = ("codes", "scale", "bias")
OPEN = "open"  # name of the rows after the last whole page, which are not quantized


def header_of(cache: QuantizedCache) -> dict[str, Any]:
    """Return the header of a file: format, number of packed rows, token ids, dropped rows."""
    dropped = torch.nonzero(~cache.live)[:, 0].tolist()
    return {"format": asdict(cache.format), "packed": cache.packed, "ids": list(cache.tokens), "dropped": dropped}


def tensors_of(cache: QuantizedCache) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Collect the tensors of packed rows, (blocks, layers, ...) each, and the unquantized last rows, all by name.

    Blocks are copied, because forks may extend the last block before it is written. After the packed rows, the last
    block has zeros. The cache itself must not be extended until its rows are written.
    """
    blocks = -(-cache.packed // BLOCK)
    for extent in cache.extents:
        if extent.check is not None:  # so that no damaged block gets a valid checksum
            extent.check(0, extent.blocks)
    tensors = {}
    for side in ("k", "v"):
        parts = [getattr(extent, side).tensors for extent in cache.extents]
        for index, name in enumerate(PARTS):
            if parts:
                tensors[f"{side}.{name}"] = _copied([part[index] for part in parts], blocks, cache.packed % BLOCK)
    rows = cache.next_position - cache.packed
    return tensors, {OPEN: cache.tail[..., :rows, :].cpu()}


def _copied(parts: list[torch.Tensor], blocks: int, last: int) -> torch.Tensor:
    """Copy the first ``blocks`` blocks of all ``parts``; of the last block only its first ``last`` rows (0: all)."""
    pieces, base = [], 0
    for part in parts:
        pieces.append(part[: max(0, blocks - base)])  # a failed pass may have left unused blocks
        base += part.shape[0]
    copy = torch.cat(pieces).cpu()
    if last:
        copy[-1, ..., copy.shape[-2] * last // BLOCK :, :] = 0
    return copy


def restore(file: BlockFile, spec: ModelSpec, device: torch.device) -> QuantizedCache:
    """Restore the cache of a file for the model that made it. Full blocks stay mapped, and are checked when first read.

    :raises CorruptError: the file's parts do not fit together, or a checksum is wrong
    :raises DataError: the file lacks a part that this version needs
    """
    try:
        format, packed = PackFormat(**file.header["format"]), int(file.header["packed"])
        ids, dropped, open_rows = list(file.header["ids"]), file.header["dropped"], file.extra(OPEN)
    except (KeyError, TypeError, ConfigError) as error:
        raise DataError(f"{file.path} is not a quantized cache of this version ({error!r}); delete it") from error
    cache = QuantizedCache(spec, format, device)
    room = list(cache.tail.shape)
    room[-2] = len(ids) - packed
    if file.blocks != -(-packed // BLOCK) or list(open_rows.shape) != room or open_rows.dtype != spec.dtype:
        raise CorruptError(
            f"{file.path}: {file.blocks} blocks and unquantized rows {list(open_rows.shape)} of {open_rows.dtype} do "
            f"not fit {packed} packed and {len(ids) - packed} unquantized rows of this model; delete it"
        )
    if packed:
        _add_blocks(cache, file, packed)
    cache.tail[..., : room[-2], :] = open_rows.to(device)
    cache.adopt(ids, packed, dropped)
    return cache


def _add_blocks(cache: QuantizedCache, file: BlockFile, packed: int) -> None:
    """Add the file's full blocks without a copy, and a copy of the last block if it is not full."""
    empty = Extent.empty(1, cache.spec, cache.format, cache.device)
    k, v = (_mapped(like, file, side, cache.device) for like, side in ((empty.k, "k"), (empty.v, "v")))
    whole = packed // BLOCK
    if whole:
        cache.extents.append(Extent(k[:whole], v[:whole], file.verify, used_rows=whole * BLOCK))
    if packed % BLOCK:
        cache.extents.append(Extent(k, v, file.verify).copy(whole, whole + 1))


def _mapped(like: Packed, file: BlockFile, side: str, device: torch.device) -> Packed:
    """Map keys or values of the file, laid out as ``like``."""
    tensors: Mapping[str, torch.Tensor] = {name: file.tensor(f"{side}.{name}") for name in PARTS}
    for expected, (name, x) in zip(like.tensors, tensors.items(), strict=True):
        if (x.shape[1:], x.dtype) != (expected.shape[1:], expected.dtype):
            raise CorruptError(f"{file.path}: {side}.{name} {tuple(x.shape)} does not fit this model; delete it")
    return like.with_tensors(*(x.to(device) for x in tensors.values()))
