"""What updates the weights: AdamW alone, or Muon for the matrices of the layers and AdamW for the rest."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from keep_agent.errors import ConfigError, check_choice
from planners.training.choices import OPTIMIZERS

DECAY = 0.05  # of weights that are matrices


class Optimizers:
    """The optimisers of a model behind one interface; their state is a flat mapping of tensors.

    ``muon``: orthogonalised momentum (torch.optim.Muon, torch 2.9 or newer) scaled to AdamW's step size, so that
    the same learning rate serves both.
    """

    def __init__(self, model: nn.Module, kind: str, lr: float) -> None:
        check_choice("--optimizer", kind, OPTIMIZERS)
        if kind == "muon" and not hasattr(torch.optim, "Muon"):
            raise ConfigError(f"--optimizer muon needs torch 2.9 or newer, this is {torch.__version__}; use adamw")
        self._names = {parameter: name for name, parameter in model.named_parameters()}
        hidden, matrices, others = [], [], []
        for parameter, name in self._names.items():
            of_a_layer = parameter.ndim == 2 and "embed" not in name
            suited = hidden if kind == "muon" and of_a_layer else matrices if parameter.ndim >= 2 else others
            suited.append(parameter)
        groups = [{"params": matrices, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}]
        self._all: list[torch.optim.Optimizer] = [torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.98), fused=True)]
        if hidden:
            self._all.append(torch.optim.Muon(hidden, lr=lr, weight_decay=DECAY, adjust_lr_fn="match_rms_adamw"))

    def set_rate(self, lr: float) -> None:
        for optimizer in self._all:
            for group in optimizer.param_groups:
                group["lr"] = lr

    def step(self) -> None:
        """Update the weights and forget the gradients."""
        for optimizer in self._all:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def state(self) -> dict[str, torch.Tensor]:
        """Every tensor of the state as ``parameter.key``, on the CPU."""
        return {
            f"{self._names[parameter]}.{key}": value.detach().cpu()
            for optimizer in self._all
            for parameter, kept in optimizer.state.items()
            for key, value in kept.items()
            if isinstance(value, torch.Tensor)
        }

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take up a state; what it does not tell of a parameter (another optimiser wrote it) begins anew."""
        wanted = {torch.optim.AdamW: ("step", "exp_avg", "exp_avg_sq")}
        for optimizer in self._all:
            keys = wanted.get(type(optimizer), ("momentum_buffer",))
            for parameter in (p for group in optimizer.param_groups for p in group["params"]):
                found = {key: state.get(f"{self._names[parameter]}.{key}") for key in keys}
                if all(value is not None for value in found.values()):
                    optimizer.state[parameter] = {key: value.to(parameter.device) for key, value in found.items()}
