"""Optimisers: AdamW alone, or Muon for the matrices of the layers and AdamW for the other parameters."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from keep_agent.errors import ConfigError, check_choice
from planners.training.options import OPTIMIZERS

DECAY = 0.05  # weight decay of matrices


class Optimizers:
    """The optimisers of a model behind one interface; their state is a flat mapping of tensors.

    ``muon``: orthogonalised momentum (torch.optim.Muon, torch 2.9 or newer) scaled to AdamW's step size, so that
    the same learning rate serves both optimisers.
    """

    def __init__(self, model: nn.Module, kind: str, lr: float) -> None:
        check_choice("--optimizer", kind, OPTIMIZERS)
        if kind == "muon" and not hasattr(torch.optim, "Muon"):
            raise ConfigError(f"--optimizer muon needs torch 2.9 or newer, this is {torch.__version__}; use adamw")
        self._names = {value: name for name, value in model.named_parameters() if value.requires_grad}
        hidden, matrices, vectors = [], [], []
        for parameter, name in self._names.items():
            is_layer_matrix = parameter.ndim == 2 and "embed" not in name
            group = hidden if kind == "muon" and is_layer_matrix else matrices if parameter.ndim >= 2 else vectors
            group.append(parameter)
        groups = [{"params": matrices, "weight_decay": DECAY}, {"params": vectors, "weight_decay": 0.0}]
        self._members: list[torch.optim.Optimizer] = [torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.98), fused=True)]
        if hidden:
            self._members.append(torch.optim.Muon(hidden, lr=lr, weight_decay=DECAY, adjust_lr_fn="match_rms_adamw"))

    def set_rate(self, lr: float) -> None:
        for optimizer in self._members:
            for group in optimizer.param_groups:
                group["lr"] = lr

    def step(self) -> None:
        """Update the weights and zero the gradients."""
        for optimizer in self._members:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def state(self) -> dict[str, torch.Tensor]:
        """Return the state's tensors on the CPU, by parameter name and key, such as ``model.norm.weight.exp_avg``."""
        return {
            f"{self._names[parameter]}.{key}": value.detach().cpu()
            for optimizer in self._members
            for parameter, tensors in optimizer.state.items()
            for key, value in tensors.items()
            if isinstance(value, torch.Tensor)
        }

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        """Load a state. Parameters that it lacks, as after a change of optimiser, start with a fresh state."""
        for optimizer in self._members:
            adamw = isinstance(optimizer, torch.optim.AdamW)
            keys = ("step", "exp_avg", "exp_avg_sq") if adamw else ("momentum_buffer",)
            for parameter in (p for group in optimizer.param_groups for p in group["params"]):
                tensors = {key: state.get(f"{self._names[parameter]}.{key}") for key in keys}
                if all(value is not None for value in tensors.values()):
                    optimizer.state[parameter] = {key: value.to(parameter.device) for key, value in tensors.items()}
