"""Start of a run that trains an adapter: a new LoRA adapter on a pretrained model, or the last checkpoint."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from keep_agent.errors import ConfigError, ModelError
from keep_agent.files import loading, read_json
from memory.engine.models.load import read_module
from memory.engine.models.tokenizer import load_tokenizer
from planners.prompts.formats import Splicer
from planners.tiny.checkpoint import RESTORE, latest_checkpoint, read_tensors
from planners.tiny.shape import HISTORY
from planners.training import packed_attention
from planners.training.adapter import CONFIG, inject, lora_config, write_adapter
from planners.training.batches import ADAPTER_LESSON_SHARE, ADAPTER_LEVELS
from planners.training.run_start import MASTER_WEIGHTS, Progress, RunStart, SlotWording, load_trained

if TYPE_CHECKING:
    from peft import LoraConfig

FOCUS_SHARE = 0.75  # share of slots with a focus: the adapted model plans with and without it
ABILITIES = {"says_goals": True, "focus": "line"}  # how the prompts of the adapted model differ from others


@dataclass
class AdapterStart(RunStart):
    """An adapted model and its adapter's configuration."""

    adapter: LoraConfig

    def shape(self) -> dict[str, int | str]:
        return {"rank": self.adapter.r, "base": str(self.adapter.base_model_name_or_path)}

    def write(
        self, folder: Path, tensors: Mapping[str, torch.Tensor], history: dict,
        more: Mapping[str, Mapping[str, torch.Tensor]],
    ) -> None:  # fmt: skip
        write_adapter(folder, self.adapter, tensors, ABILITIES, history, more)


def start_adapter(args: argparse.Namespace) -> AdapterStart:
    """Resume the run in ``--out``, else make a new adapter of the model ``--base``.

    :raises ConfigError: an option does not fit the existing adapter
    :raises ModelError: the base model or a checkpoint is missing or damaged
    """
    checkpoint = latest_checkpoint(Path(args.out))
    progress, calls = Progress(), []
    if checkpoint:
        with loading(f"the training record in {checkpoint}", RESTORE):
            config = read_json(checkpoint / CONFIG, RESTORE)
            history = read_json(checkpoint / HISTORY, RESTORE)
            base, rank = str(config["base_model_name_or_path"]), int(config["r"])
            progress, calls = Progress(**history["progress"]), history["calls"]
        if (args.base, args.rank) != (base, rank):
            raise ConfigError(
                f"the run in {args.out} trains an adapter of --base {base} with --rank {rank}; give these"
            )
    torch.manual_seed(args.seed)
    model, files = read_module(args.base, torch.float32, torch.device("cpu"), attention=packed_attention.NAME)
    tokenizer = load_tokenizer(str(files.folder), model.get_input_embeddings().num_embeddings)
    adapter = lora_config(args.base, args.rank)
    inject(model, adapter)
    if checkpoint:
        trained = {name: parameter.data for name, parameter in model.named_parameters() if parameter.requires_grad}
        load_trained(trained, read_tensors(checkpoint / MASTER_WEIGHTS), checkpoint / MASTER_WEIGHTS)
    bos = tokenizer.bos_token_id
    if bos is None:
        raise ModelError(
            f"the tokenizer of {args.base!r} has no BOS token, with which prompts begin; use another model"
        )
    wording = SlotWording(ADAPTER_LEVELS, True, FOCUS_SHARE, ADAPTER_LESSON_SHARE, is_limit=True)
    return AdapterStart(model, Splicer(tokenizer).lines, bos, bos, wording, progress, calls, checkpoint, adapter)
