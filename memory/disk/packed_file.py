"""A packed cache as the file of an agent: blocks are mapped as they are, nothing is unpacked or built anew."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch

from keep_agent.errors import CorruptError
from memory.disk.blockfile import BlockFile
from memory.engine.packed import BLOCK, Extent, PackedCache
from memory.engine.spec import ModelSpec
from memory.quantize import Packed, PackFormat

PARTS = ("codes", "scale", "bias")
OPEN = "open"  # the rows that make up no page yet, as they were computed


def header_of(cache: PackedCache) -> dict[str, Any]:
    """What the tensors do not say."""
    dropped = torch.nonzero(~cache.live)[:, 0].tolist()
    return {"format": asdict(cache.format), "packed": cache.packed, "ids": cache.tokens, "dropped": dropped}


def tensors_of(cache: PackedCache) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Blocks (blocks, layers, ...) of the packed rows, by name, and the open rows; copies, which later turns leave
    alone."""
    blocks = -(-cache.packed // BLOCK)
    tensors = {}
    for extent in cache.extents:
        if extent.check is not None:  # or damage would get a checksum of its own
            extent.check(0, extent.blocks)
    for side in ("k", "v"):
        parts = [getattr(extent, side).tensors for extent in cache.extents]
        for index, name in enumerate(PARTS):
            if parts:
                tensors[f"{side}.{name}"] = torch.cat([own[index] for own in parts])[:blocks].cpu()
    rows = cache.next_position - cache.packed
    return tensors, {OPEN: cache.open[..., :rows, :].cpu().clone()}


def restore(file: BlockFile, spec: ModelSpec, device: torch.device) -> PackedCache:
    """The cache a file holds, for the model it was made with. Whole blocks stay mapped, checked when first read.

    :raises CorruptError: the file's parts do not fit together, or a checksum is wrong
    """
    header = file.header
    cache = PackedCache(spec, PackFormat(**header["format"]), device)
    ids, packed = list(header["ids"]), int(header["packed"])
    if file.blocks != -(-packed // BLOCK) or not packed <= len(ids):
        raise CorruptError(f"{file.path}: {file.blocks} blocks do not hold {packed} of {len(ids)} rows; delete it")
    if packed:
        _add_blocks(cache, file, packed)
    open_rows = file.extra(OPEN)
    cache.open[..., : open_rows.shape[-2], :] = open_rows.to(device)
    cache.adopt(ids, packed, header["dropped"])
    return cache


def _add_blocks(cache: PackedCache, file: BlockFile, packed: int) -> None:
    """The file's whole blocks as they lie there, and a copy of the last one if it has room."""
    empty = Extent.empty(1, cache.spec, cache.format, cache.device)
    mapped = {name: file.tensor(name) for name in file.names}
    k, v = (_packed(like, mapped, side) for like, side in ((empty.k, "k"), (empty.v, "v")))
    whole = packed // BLOCK
    if whole:
        cache.extents.append(Extent(k[:whole], v[:whole], file.verify))
    if packed % BLOCK:
        file.verify(whole, whole + 1)
        cache.extents.append(Extent(k[whole:], v[whole:]).copy())


def _packed(like: Packed, mapped: Mapping[str, torch.Tensor], side: str) -> Packed:
    return like.with_tensors(*(mapped[f"{side}.{name}"].to(like.codes.device) for name in PARTS))
