"""Start of a run that trains an adapter: a new LoRA adapter on a pretrained model, or the last checkpoint."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import torch

from keep_agent.errors import ConfigError, ModelError
from keep_agent.files import loading, read_json
from memory.engine.models.adapter import WEIGHTS
from memory.engine.models.load import read_module
from memory.engine.models.model_path import ADAPTER
from memory.engine.models.model_spec import make_spec
from memory.engine.models.packaged import hub_name
from memory.engine.models.tokenizer import load_tokenizer
from memory.files.checksums import CHECKSUMS, check_sums
from memory.files.folder_versions import latest
from planners.prompts.formats import Splicer
from planners.tiny.checkpoint import RESTORE, latest_checkpoint, read_tensors
from planners.tiny.shape import HISTORY
from planners.training import packed_attention
from planners.training.adapter import file_name, inject, lora_config, write_adapter
from planners.training.batches import ADAPTER_CURRICULUM
from planners.training.packing import PREAMBLE_LINES
from planners.training.run_start import MASTER_WEIGHTS, Progress, RunStart, check_init, load_trained

if TYPE_CHECKING:
    from peft import LoraConfig

# how the prompts of the adapted model differ from those of other models
PROMPTS = {"says_goals": True, "focus": "line", "preamble": PREAMBLE_LINES}


@dataclass
class AdapterStart(RunStart):
    """An adapted model and its adapter's configuration."""

    adapter: LoraConfig
    weights: ClassVar[str] = WEIGHTS

    def shape(self) -> dict[str, int | str]:
        return {"rank": self.adapter.r, "base": str(self.adapter.base_model_name_or_path)}

    def write(
        self, folder: Path, tensors: Mapping[str, torch.Tensor], history: dict,
        more: Mapping[str, Mapping[str, torch.Tensor]],
    ) -> None:  # fmt: skip
        write_adapter(folder, self.adapter, tensors, PROMPTS, history, more)


def start_adapter(args: argparse.Namespace) -> AdapterStart:
    """Resume the run in ``--out``, else go on from the adapter ``--init``, else make a new adapter of ``--base``.

    :raises ConfigError: an option does not fit the existing adapter
    :raises ModelError: the base model or a checkpoint is missing or damaged
    """
    checkpoint, name = latest_checkpoint(Path(args.out)), hub_name(args.base)
    source = checkpoint or (latest(Path(args.init)) if args.init else None)
    progress, calls = Progress(), []
    if source:
        check_sums(source / CHECKSUMS)
        with loading(f"the adapter and its training record in {source}", RESTORE):
            config, history = read_json(source / ADAPTER, RESTORE), read_json(source / HISTORY, RESTORE)
            base, rank = str(config["base_model_name_or_path"]), int(config["r"])
            progress, calls = Progress(**history["progress"]), history["calls"]
        if (name, args.rank) != (base, rank):
            raise ConfigError(f"{source} holds an adapter of --base {base} with --rank {rank}; give these")
        if checkpoint:
            check_init(args, calls, WEIGHTS)
    torch.manual_seed(args.seed)
    model, files = read_module(args.base, torch.float32, torch.device("cpu"), attention=packed_attention.NAME)
    spec = make_spec(model, "")
    if any(spec.windows) or spec.sinks:
        raise ConfigError(
            f"--base {args.base} has sliding windows or attention sinks, which the trainer's attention does not have; "
            "use a model without them, or train its adapter with another program"
        )
    tokenizer = load_tokenizer(str(files.folder), model.get_input_embeddings().num_embeddings)
    adapter = lora_config(name, args.rank)
    inject(model, adapter)
    if source:
        trained = {key: value.data for key, value in model.named_parameters() if value.requires_grad}
        if not checkpoint:
            trained = {file_name(key): value for key, value in trained.items()}
        file = source / (MASTER_WEIGHTS if checkpoint else WEIGHTS)
        load_trained(trained, read_tensors(file), file)
    bos = tokenizer.bos_token_id
    if bos is None:
        raise ModelError(
            f"the tokenizer of {args.base!r} has no BOS token, with which prompts begin; use another model"
        )
    encode = Splicer(tokenizer).lines
    return AdapterStart(model, encode, bos, bos, ADAPTER_CURRICULUM, progress, calls, checkpoint, adapter)
