"""Residual head of IntentKV: a small network that corrects the scores of `query_memory.rule_scores`, and its file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save
from torch import nn
from torch.nn import functional

from keep_agent.errors import ModelError
from keep_agent.files import loading
from memory.files.atomic import write_atomic
from memory.files.tensor_file import open_tensors

SHIPPED = Path(__file__).parent / "heads"
FORMAT = "keep-agent retention head 2"


class ResidualHead(nn.Module):
    """``s_j = rule_j + alpha MLP([phi_j, c_j])`` (arXiv 2606.09916, equations 4 to 6); before training the MLP gives 0.

    ``phi_j`` are the features of row j (`query_memory.head_features`), and ``c_j`` is four-headed attention of the
    features over the mean keys of the query span (last instruction and query), without an output projection. The head
    has 214,274 parameters at head_dim 128. Features are first normalised by ``center`` and ``spread``, because a mean
    query memory is ten times smaller than a mean key.
    """

    WIDTH, HEADS, HIDDEN, LIMIT = 128, 4, 256, 5.0

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        features = 3 * head_dim + 1
        self.head_dim = head_dim
        self.about: Mapping[str, Any] = {}  # metadata from its file
        self.sha256: str | None = None  # hash of its tensors, from its file
        self.to_query = nn.Linear(features, self.WIDTH)
        self.to_key, self.to_value = nn.Linear(head_dim, self.WIDTH), nn.Linear(head_dim, self.WIDTH)
        self.hidden, self.out = nn.Linear(features + self.WIDTH, self.HIDDEN), nn.Linear(self.HIDDEN, 1)
        self.alpha = nn.Parameter(torch.ones(()))
        self.register_buffer("center", torch.zeros(features))
        self.register_buffer("spread", torch.ones(features))
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, features: torch.Tensor, span: torch.Tensor | None, rule: torch.Tensor) -> torch.Tensor:
        """Return (rows,) scores for ``features`` (rows, 3 head_dim + 1) and the scores ``rule`` (rows,).

        :param span: (n, head_dim) mean keys of the query span; None or empty: no attention
        :raises ModelError: ``features`` are of another head_dim
        """
        self.check(features.shape[1] // 3)
        features = (features - self.center) / self.spread
        logits = self.out(functional.gelu(self.hidden(torch.cat([features, self._read(features, span)], 1))))
        return rule + self.alpha.clamp(-self.LIMIT, self.LIMIT) * logits[:, 0]

    def check(self, head_dim: int) -> None:
        """Raise ModelError unless the head was trained for ``head_dim``."""
        if head_dim != self.head_dim:
            raise ModelError(
                f"this retention head was trained for head_dim {self.head_dim}, the model's is {head_dim}; train one "
                "with python -m planners.train_retention, or do without (planner=intentkv_rule)"
            )

    def _read(self, features: torch.Tensor, span: torch.Tensor | None) -> torch.Tensor:
        """Compute (rows, WIDTH) attention of the rows over the query span."""
        if span is None or not span.shape[0]:
            return features.new_zeros(features.shape[0], self.WIDTH)
        projections = self.to_query(features), self.to_key(span), self.to_value(span)
        queries, keys, values = (x.unflatten(1, (self.HEADS, -1)).transpose(0, 1) for x in projections)
        return functional.scaled_dot_product_attention(queries, keys, values).transpose(0, 1).flatten(1)


def save_head(head: ResidualHead, path: Path, about: Mapping[str, Any]) -> None:
    """Write a head atomically, with its checksum and the metadata ``about``."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in head.state_dict().items()}
    metadata = {"format": FORMAT, "sha256": checksum(tensors), "about": json.dumps(dict(about))}
    write_atomic(path, save(tensors, metadata))


def load_head(name: str) -> ResidualHead:
    """Load a head from a file, or a bundled head by its name. Raises ModelError if it is missing or damaged."""
    path = SHIPPED / f"{name}.safetensors"
    path = path if path.is_file() else Path(name)
    try:
        with open_tensors(path) as file:
            metadata, tensors = file.metadata() or {}, {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        known = ", ".join(sorted(p.stem for p in SHIPPED.glob("*.safetensors"))) or "none"
        raise ModelError(
            f"no retention head in {name!r} ({error}); heads that come with the package: {known}; train one with "
            "python -m planners.train_retention, or do without (planner=intentkv_rule)"
        ) from error
    if metadata.get("format") != FORMAT or metadata.get("sha256") != checksum(tensors):
        raise ModelError(f"retention head {name!r} is damaged, or is not a retention head; train or copy it again")
    if not all(tensor.isfinite().all() for tensor in tensors.values()):
        raise ModelError(f"retention head {name!r} holds numbers that are not finite; train it again")
    with loading(f"retention head {name!r}", "train or copy it again"):
        head = ResidualHead(tensors["to_key.weight"].shape[1])
        head.load_state_dict(tensors)
        head.sha256 = metadata["sha256"]
        head.about = json.loads(metadata.get("about", "{}"))
    return head.eval()


def checksum(tensors: Mapping[str, torch.Tensor], *texts: str) -> str:
    """Compute the SHA-256 of named tensors on the CPU, and of ``texts``."""
    digest = hashlib.sha256("".join(f"{len(text)} {text}" for text in texts).encode())
    for name in sorted(tensors):
        digest.update(f"{name} {tuple(tensors[name].shape)} ".encode() + tensors[name].contiguous().numpy().tobytes())
    return digest.hexdigest()
