"""From a composed config to the planner with a model: weights, tokenizer, memory method, session, prompt format."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from omegaconf import DictConfig, OmegaConf
from transformers.utils.logging import disable_progress_bar

from keep_agent.config.compose import compose_agent
from keep_agent.config.examples import make_examples
from keep_agent.errors import ConfigError
from keep_agent.options import usable_device
from memory.config.component_names import METHOD, TARGET
from memory.config.components import component
from memory.engine.base import Engine
from memory.engine.models.load import LoadedModel, load_model
from memory.engine.models.tokenizer import load_tokenizer
from memory.engine.transfer.link import Throttle
from memory.engine.transformers.engine import TransformersEngine
from memory.method import MemoryMethod
from memory.segments.sentence_encoder import CachedEncoder, NamespaceEncoder, SentenceEncoder, make_encoder
from memory.session import MemorySession
from planners.kv_planner import KVPlanner, shut
from planners.prompts.formats import Format, make_format
from planners.tiny.checkpoint import BUNDLED, PLANNERS, SAYS_GOALS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedTokenizerBase

    from planners.prompts.formats import Example

NATIVE = ("avx512_bf16", "amx_bf16")  # features of an x86 CPU that multiplies bfloat16 itself


@dataclass(frozen=True)
class Brain:
    """A loaded model with a memory method: all that planners of several agents share."""

    engine: Engine
    method: MemoryMethod
    tokenizer: PreTrainedTokenizerBase
    format: Format
    encoder: CachedEncoder
    config: DictConfig

    def planner(self, namespace: str = "") -> KVPlanner:
        """A planner with a memory of its own; blocks and vectors are shared only within a namespace."""
        encoder = NamespaceEncoder(self.encoder, namespace)
        return plan_with(self.engine, self.method, self.format, encoder, self.config, namespace)

    def forget(self, namespace: str) -> None:
        """Delete the blocks of a namespace, also those that outlive the process."""
        self.engine.run(partial(self.method.pool.forget, namespace))

    def close(self) -> None:
        """Stop the engine; then a storage that persists writes. May be called twice."""
        shut(self.engine, self.method)


def load_brain(config: DictConfig, examples: Sequence[Example] = ()) -> Brain:
    """Raises KeepError for what cannot be loaded or put together."""
    method = make_method(config.memory)
    with ExitStack() as refused:
        engine = make_engine(config)
        refused.callback(shut, engine, method)
        tokenizer = make_tokenizer(config.model, engine.model)
        prompt_format = format_of(config.prompt, engine.model, tokenizer, examples)
        encoder = make_encoder(config.prompt.encoder)
        _warm_up(engine, prompt_format, encoder)
        engine.run(lambda: method.storage.open(engine.model_key))  # so that what is on the disk can be deleted
        refused.pop_all()
    return Brain(engine, method, tokenizer, prompt_format, encoder, config)


def format_of(
    prompt: DictConfig, model: LoadedModel, tokenizer: PreTrainedTokenizerBase, examples: Sequence[Example] = ()
) -> Format:
    """The prompt format of a config. Raises ConfigError for one that cannot be."""
    learned = bool(getattr(model.module.config, SAYS_GOALS, False))
    goal = prompt.get("goal")  # an older run has none
    goals = learned if goal is None else goal
    if goal and prompt.format == "lota":
        raise ConfigError("prompt.goal=true does not work with prompt=lota, which asks for no goal; leave it out")
    return make_format(prompt.format, tokenizer, examples, prompt.start, goals)


def brain_of(overrides: Sequence[str]) -> Brain:
    """The brain of ``configs/agent.yaml`` with ``overrides``. Raises KeepError, or what Hydra raises."""
    return agent_brain(compose_agent(overrides))


def agent_brain(config: DictConfig) -> Brain:
    """The brain of what `compose_agent` gave. Raises KeepError."""
    if config.eval.threads is not None:
        torch.set_num_threads(config.eval.threads)
    brain = load_brain(config, make_examples(config.env, config.prompt.examples, config.eval.seed))
    with ExitStack() as refused:
        refused.callback(brain.close)
        brain.planner().session.close()  # what no planner can be made with is refused now, not with the first robot
        refused.pop_all()
    return brain


def make_kv_planner(config: DictConfig, examples: Sequence[Example] = ()) -> KVPlanner:
    """A planner whose memory is the KV cache. Raises as `load_brain` does."""
    return load_brain(config, examples).planner()


def _warm_up(engine: Engine, prompt_format: Format, encoder: CachedEncoder) -> None:
    """Load what loads lazily, so that no step is charged for it."""
    encoder.encode(["ready\n"])
    engine.encode([(None, prompt_format.line("ready\n"))])


def plan_with(
    engine: Engine,
    method: MemoryMethod,
    prompt_format: Format,
    encoder: SentenceEncoder,
    config: DictConfig,
    namespace: str = "",
) -> KVPlanner:
    """A planner over a loaded engine, so that several methods can share one."""
    budget, context = config.prompt.budget, prompt_format.context()
    session = MemorySession(engine, method, encoder, prompt_format.line, budget, context, namespace)
    settings: dict[str, Any] = {key: value for key, value in config.planner.items() if key != "kind"}
    try:
        return KVPlanner(session, prompt_format, style=config.prompt.style, **settings)
    except TypeError as error:
        raise ConfigError(f"planner={config.planner.name}: {error}") from error


def make_method(memory: DictConfig) -> MemoryMethod:
    """The memory method a config describes. Raises ConfigError for one that cannot be made."""
    made = component(OmegaConf.to_container(memory, resolve=True))
    if not isinstance(made, MemoryMethod):
        raise ConfigError(f"memory._target_={memory.get(TARGET)} is one stage, not a method: use {METHOD}")
    return made


def make_engine(config: DictConfig, transport: str | None = None) -> Engine:
    """The model of a config and what drives it; ``transport`` instead of the config's own.

    :raises KeepError: what cannot be loaded, or an engine that cannot be
    """
    said = config.engine
    slow = said.link_gigabytes is not None
    throttle = Throttle(said.link_gigabytes, said.link_microseconds) if slow else None
    model = make_model(config.model, config.eval.seed)
    chunk = None if said.chunk_megabytes is None else 1e6 * said.chunk_megabytes
    return TransformersEngine(model, transport or said.transport, throttle, said.importance, chunk)


def make_model(model: DictConfig, seed: int = 0) -> LoadedModel:
    """The model of a config; some come with the package."""
    disable_progress_bar()  # ours is the only one
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # retries end in an error that says all
    device = usable_device("model.device", model.device)
    return load_model(_place(model), _dtype(model.dtype, device), device, model.init, seed, model.quantization)


def _dtype(name: str, device: str) -> str:
    """``auto`` is bfloat16 where the device is known to multiply it itself; a CPU that does not takes many times as
    long.
    """
    if name != "auto":
        return name
    if torch.device(device).type != "cpu":
        return "bfloat16"
    features = getattr(torch.cpu, "get_capabilities", dict)()  # an older torch cannot tell
    return "bfloat16" if any(features.get(feature) for feature in NATIVE) else "float32"


def make_tokenizer(model: DictConfig, loaded: LoadedModel) -> PreTrainedTokenizerBase:
    """The model's tokenizer; random weights without one speak planner-tiny's. Raises ModelError if it does not fit."""
    name = model.tokenizer or str(loaded.folder or _place(model))
    has_own = model.tokenizer or loaded.folder is not None or Path(name).is_dir()
    if not has_own and model.init == "random":
        name = str(BUNDLED)
    tokenizer = load_tokenizer(name, loaded.spec.vocab)
    if loaded.files is not None:
        loaded.files.check_unchanged()  # the tokenizer was hashed with the weights
    return tokenizer


def _place(model: DictConfig) -> str:
    """Where a model comes from: a folder of the package, else its name."""
    if OmegaConf.is_missing(model, "name"):
        raise ConfigError("model=custom needs a name: give model=FOLDER_OR_HUB_NAME")
    folder = PLANNERS.get(model.name)
    return str(folder) if folder and (model.init == "pretrained" or folder.is_dir()) else model.name
