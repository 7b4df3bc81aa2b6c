"""What a model's layers cost per row: floating-point operations and bytes of weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memory.engine.engine import Engine


@dataclass(frozen=True, slots=True)
class Shape:
    """A decoder's dimensions; ``width`` is what one row's MLP is wide: of a mixture, that of its active experts."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    width: int
    router: int  # experts that a row is scored for; 0: no mixture
    itemsize: int  # bytes of a weight, and of a key's or value's number
    windows: tuple[int | None, ...]  # per layer, in tokens
    parameter_bytes: int

    @classmethod
    def of(cls, engine: Engine) -> Shape:
        spec, config = engine.spec, engine.model.module.config
        experts, active = _mixture(config)
        width = getattr(config, "moe_intermediate_size", None) if experts else None
        return cls(
            spec.layers,
            spec.hidden,
            spec.heads,
            spec.kv_heads,
            spec.head_dim,
            spec.vocab,
            (width or config.intermediate_size) * active,
            experts,
            spec.dtype.itemsize,
            spec.windows,
            spec.parameter_bytes,
        )

    @property
    def value(self) -> int:
        """Operations of a row's values; its keys take as many."""
        return 2 * self.hidden * self.kv_heads * self.head_dim

    @property
    def rest(self) -> int:
        """Operations of all the other products of a row in a layer: queries, output, MLP."""
        return 4 * self.hidden * self.heads * self.head_dim + 2 * self.hidden * (3 * self.width + self.router)

    @property
    def pair(self) -> int:
        """Operations of a query row and a key row that it sees: score, and weighted value."""
        return 4 * self.heads * self.head_dim

    @property
    def head(self) -> int:
        """Operations of one row's logits."""
        return 2 * self.hidden * self.vocab

    @property
    def token_bytes(self) -> int:
        """Keys and values of one row, all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.itemsize

    @property
    def head_bytes(self) -> int:
        return min(self.hidden * self.vocab * self.itemsize, self.parameter_bytes)

    @property
    def layer_bytes(self) -> int:
        """Weights of all layers that a row meets: two operations each."""
        met = self.layers * (2 * self.value + self.rest) // 2 * self.itemsize
        return min(met, self.parameter_bytes - self.head_bytes)  # packed weights are fewer bytes


def _mixture(config: Any) -> tuple[int, int]:
    """Experts that there are, and those active per row: 0 and 1 for a dense model."""
    experts = getattr(config, "num_experts", None) or getattr(config, "num_local_experts", None) or 0
    return experts, (config.num_experts_per_tok if experts else 1)
