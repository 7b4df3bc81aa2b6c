"""Quantization of keys and values: codes of 4 or 8 bits, with a float16 scale and bias for each group of numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch

from keep_agent.errors import ConfigError, ModelError, check_choice

Axis = Literal["token", "channel"]  # whether a group has numbers of one token, or of one channel of several tokens
MIN_GROUP = 8  # minimum numbers in a group


@dataclass(frozen=True, slots=True)
class PackFormat:
    """Format of packed numbers: ``bits`` per number, and the size of a group, whose numbers share a scale and a bias.

    With ``keys="token"`` a group has consecutive numbers of one token's keys, from one or several KV heads. With
    "channel" (KIVI, arXiv 2402.02750) a group has one channel of ``group`` tokens: a few channels of keys are far
    from zero in all tokens, and need their own scale. Values are always packed by token.
    """

    bits: int = 4
    group: int = 64
    keys: Axis = "token"

    def __post_init__(self) -> None:
        if self.bits not in (4, 8):
            raise ConfigError(f"bits={self.bits} is not supported: use 4 or 8")
        if self.group < MIN_GROUP or self.group & (self.group - 1):
            raise ConfigError(f"group={self.group} is not a power of two above {MIN_GROUP - 1}: use 32, 64 or 128")
        check_choice("keys", self.keys, ("token", "channel"))

    def grid(self, numbers: int, along: Axis = "token") -> Grid:
        """Divide tokens into groups; a token has ``numbers`` (kv_heads * head_dim) numbers.

        By token, each token is padded to whole groups. The group size is the power of two, up to ``group``, with which
        a padded token takes the fewest bytes.
        """
        if along == "channel":
            return Grid(numbers + numbers % 2, 1, self.group, self.bits)
        sizes = (1 << power for power in range(MIN_GROUP.bit_length() - 1, self.group.bit_length()))
        grids = (Grid(-(-numbers // size) * size, size, 1, self.bits) for size in sizes)
        return min(grids, key=lambda grid: (grid.bytes_per_token, grid.width))


@dataclass(frozen=True, slots=True)
class Grid:
    """Division into groups of ``size`` numbers from each of ``span`` tokens. A padded token has ``width`` numbers."""

    width: int
    size: int
    span: int
    bits: int

    @property
    def bytes_per_token(self) -> float:
        return self.width * self.bits / 8 + 4 * self.width / (self.size * self.span)

    def of(self, x: torch.Tensor) -> torch.Tensor:
        """View numbers (..., tokens, width) by their groups: (..., tokens / span, span, groups, size)."""
        tokens = x.shape[-2] // self.span
        return x.unflatten(-2, (tokens, self.span)).unflatten(-1, (self.width // self.size, self.size))


def bytes_per_token(kv_heads: int, head_dim: int, format: PackFormat) -> int:
    """Count the bytes of one token's keys and values in one layer, with their share of scales and biases."""
    numbers = kv_heads * head_dim
    return math.ceil(format.grid(numbers, format.keys).bytes_per_token + format.grid(numbers).bytes_per_token)


@dataclass(frozen=True, slots=True)
class Packed:
    """Packed keys or values of shape (..., kv_heads, tokens, head_dim); the tensors are stored token by token.

    ``codes`` (..., tokens, bytes) uint8: with 4 bits, a token's byte i has numbers i (low bits) and i + width / 2.
    ``scale``, ``bias`` (..., tokens / span, groups) float16: a number is ``scale * code + bias``.
    """

    codes: torch.Tensor
    scale: torch.Tensor
    bias: torch.Tensor
    kv_heads: int
    head_dim: int
    grid: Grid

    @classmethod
    def empty(
        cls, shape: tuple[int, ...], format: PackFormat, along: Axis = "token", device: torch.device | str = "cpu"
    ) -> Packed:
        """Make packed zeros of ``shape`` (..., kv_heads, tokens, head_dim)."""
        *lead, kv_heads, tokens, head_dim = shape
        grid = format.grid(kv_heads * head_dim, along)
        _check_span(tokens, grid.span)
        codes = torch.zeros(*lead, tokens, grid.width * grid.bits // 8, dtype=torch.uint8, device=device)
        scale = codes.new_zeros(*lead, tokens // grid.span, grid.width // grid.size, dtype=torch.float16)
        return cls(codes, scale, torch.zeros_like(scale), kv_heads, head_dim, grid)

    @property
    def tokens(self) -> int:
        return self.codes.shape[-2]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the unpacked numbers."""
        return (*self.codes.shape[:-2], self.kv_heads, self.tokens, self.head_dim)

    def to(self, device: torch.device | str) -> Packed:
        return self.map(lambda x: x.to(device))

    @property
    def tensors(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.codes, self.scale, self.bias

    @property
    def nbytes(self) -> int:
        return sum(x.nbytes for x in self.tensors)

    def with_tensors(self, codes: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor) -> Packed:
        """Make packed numbers in the same grid from other codes, scale and bias."""
        return Packed(codes, scale, bias, self.kv_heads, self.head_dim, self.grid)

    def map(self, function: Callable[[torch.Tensor], torch.Tensor]) -> Packed:
        """Apply a function to codes, scale and bias."""
        return self.with_tensors(*map(function, self.tensors))

    def __getitem__(self, index: Any) -> Packed:
        """Index the dimensions before kv_heads, as torch indexes them: ``packed[layer]``."""
        lead, parts = self.codes.dim() - 2, len(index) if isinstance(index, tuple) else 1
        if parts > lead:
            raise ConfigError(f"index {index!r} has {parts} parts: {self.shape} has {lead} dimensions before kv_heads")
        return self.map(lambda x: x[index])

    def part(self, start: int, stop: int) -> Packed:
        """View tokens ``start:stop``, which must be whole groups if the numbers are packed by channel."""
        span = self.grid.span
        _check_span(start, span)
        _check_span(stop, span)
        rows = slice(start // span, stop // span)
        return self.with_tensors(self.codes[..., start:stop, :], self.scale[..., rows, :], self.bias[..., rows, :])

    def write(self, start: int, new: Packed) -> None:
        """Overwrite the tokens from ``start`` on with those of ``new``."""
        if new.grid != self.grid:  # torch would broadcast one scale over all groups
            raise ConfigError(f"groups {new.grid} do not fit into {self.grid}: pack both in the same format")
        for target, source in zip(self.part(start, start + new.tokens).tensors, new.tensors, strict=True):
            target.copy_(source)

    def unpack(self, dtype: torch.dtype) -> torch.Tensor:
        """Decode the numbers, contiguous (..., kv_heads, tokens, head_dim)."""
        codes = self.codes if self.grid.bits == 8 else torch.cat([self.codes & 15, self.codes >> 4], -1)
        numbers = codes.float()
        grouped = self.grid.of(numbers)
        grouped.mul_(_by_group(self.scale)).add_(_by_group(self.bias))
        heads = numbers[..., : self.kv_heads * self.head_dim].unflatten(-1, (self.kv_heads, self.head_dim))
        return heads.to(dtype).transpose(-3, -2).contiguous()  # convert first: the copy is half as large


def pack(x: torch.Tensor, format: PackFormat, along: Axis = "token") -> Packed:
    """Pack ``x`` (..., kv_heads, tokens, head_dim). For keys pass ``along=format.keys``, for values "token".

    The same input gives the same bytes. Unpacked numbers differ from the input by at most half a scale, plus rounding
    and underflow of float32.

    :raises ConfigError: if ``along`` is "channel" and the number of tokens is not a multiple of the group.
    :raises ModelError: if numbers are not finite, or too large for a float16 scale and bias.
    """
    kv_heads, tokens, head_dim = x.shape[-3:]
    grid = format.grid(kv_heads * head_dim, along)
    _check_span(tokens, grid.span)
    flat = x.transpose(-3, -2).flatten(-2).float()
    if missing := grid.width - flat.shape[-1]:  # repeat the last number: its group keeps its minimum and maximum
        flat = torch.cat([flat, flat[..., -1:].expand(*flat.shape[:-1], missing)], -1)
    grouped = grid.of(flat)
    levels = (1 << format.bits) - 1
    bias = _half(grouped.amin((-3, -1)), float("-inf"))  # rounded down, so that no number is below the bias
    scale = _half((grouped.amax((-3, -1)) - bias) / levels, float("inf"))  # rounded up: no number exceeds the last code
    if not bool((scale.isfinite() & bias.isfinite()).all()):
        low, high = x.aminmax()
        raise ModelError(
            f"numbers from {low:g} to {high:g} cannot be packed, as they have no float16 scale and bias in "
            f"{format.bits} bits: check the model's dtype and weights, or keep its memory unpacked"
        )
    steps = _by_group(scale)
    codes = (grouped - _by_group(bias)).div_(steps.where(steps > 0, 1)).round_().clamp_(max=levels).to(torch.uint8)
    codes = codes.flatten(-2).flatten(-3, -2)
    if format.bits == 4:
        low, high = codes.chunk(2, -1)
        codes = low | high << 4
    return Packed(codes, scale, bias, kv_heads, head_dim, grid)


def _check_span(tokens: int, span: int) -> None:
    if tokens % span:
        raise ConfigError(
            f"{tokens} tokens are not a multiple of {span}, the group of keys packed by channel: "
            f"keep the last {tokens % span} unpacked until the group is full, or use keys='token'"
        )


def _half(x: torch.Tensor, toward: float) -> torch.Tensor:
    """Convert to float16, rounded in the direction of ``toward`` (an infinity)."""
    near = x.half()
    wrong = near > x if toward < 0 else near < x
    return torch.where(wrong, near.nextafter(torch.full_like(near, toward)), near)


def _by_group(x: torch.Tensor) -> torch.Tensor:
    """Reshape scale or bias (..., tokens / span, groups) for `Grid.of`: float32, (..., tokens / span, 1, groups, 1)."""
    return x.float()[..., None, :, None]
