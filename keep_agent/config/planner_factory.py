"""Factory of planners with a model: weights, tokenizer, memory method, session and prompt format from a config."""

from __future__ import annotations

import logging
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from omegaconf import DictConfig, OmegaConf
from transformers.utils.logging import disable_progress_bar

from keep_agent.config.compose import compose_agent
from keep_agent.config.examples import make_examples
from keep_agent.console import make_console
from keep_agent.errors import ConfigError, ModelError
from keep_agent.files import read_json
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
from planners.bundled import ABILITIES, ADAPTERS, BUNDLED, PLANNERS
from planners.kv_planner import KVPlanner
from planners.prompts.formats import FOCI, Format, make_format
from planners.prompts.preamble import MOST as MOST_LINES
from planners.prompts.preamble import preamble
from planners.tiny.checkpoint import SAYS_GOALS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedTokenizerBase

    from planners.prompts.formats import Example

BFLOAT16_FEATURES = ("avx512_bf16", "amx_bf16")  # each means that an x86 CPU has bfloat16 arithmetic


@dataclass(frozen=True)
class PlannerResources:
    """Loaded model with a memory method, shared by the planners of several agents."""

    engine: Engine
    method: MemoryMethod
    tokenizer: PreTrainedTokenizerBase
    format: Format
    encoder: CachedEncoder
    config: DictConfig

    def planner(self, namespace: str = "") -> KVPlanner:
        """Make a planner with its own memory. Only planners of one ``namespace`` share KV blocks and embeddings."""
        encoder = NamespaceEncoder(self.encoder, namespace)
        return kv_planner(self.engine, self.method, self.format, encoder, self.config, namespace)

    def forget(self, namespace: str) -> None:
        """Delete the KV blocks of a namespace, in memory and on disk."""
        self.engine.run(partial(self.method.pool.forget, namespace))

    def close(self) -> None:
        """Stop the engine, then flush the storage. May be called twice."""
        close_and_flush(self.engine, self.method)


def close_and_flush(engine: Engine, method: MemoryMethod) -> None:
    """Stop an engine, then flush the method's storage, even if the engine fails. May be called twice."""
    try:
        engine.close()
    finally:
        method.storage.flush()


def load_resources(config: DictConfig, examples: Sequence[Example] = ()) -> PlannerResources:
    """Load the model and the memory method of a config. Raises KeepError for invalid files and combinations."""
    method = make_method(config.memory)
    with ExitStack() as cleanup:
        engine = make_engine(config)
        cleanup.callback(close_and_flush, engine, method)
        tokenizer = make_tokenizer(config.model, engine.model)
        prompt_format = format_of(config.prompt, engine.model, tokenizer, examples)
        encoder = make_encoder(config.prompt.encoder)
        encoder.encode(["ready\n"])  # the first call finishes loading, so that no plan waits for it
        engine.encode([(None, prompt_format.line("ready\n"))])
        engine.run(lambda: method.storage.open(engine.model_key))  # before it is open, `forget` finds no blocks on disk
        cleanup.pop_all()
    return PlannerResources(engine, method, tokenizer, prompt_format, encoder, config)


def format_of(
    prompt: DictConfig, model: LoadedModel, tokenizer: PreTrainedTokenizerBase, examples: Sequence[Example] = ()
) -> Format:
    """Make the prompt format of a config. Raises ConfigError if it is invalid."""
    if prompt.format == "lota":
        return make_format(prompt.format, tokenizer, examples, prompt.start)
    trained = _abilities(model)
    goal, lines = prompt.get("goal"), prompt.get("preamble")  # missing in the configs of older runs, as is the focus
    goals = trained.says_goals if goal is None else goal
    focus = prompt.get("focus") or trained.focus
    text = preamble(prompt.style, trained.preamble if lines is None else lines)
    return make_format(prompt.format, tokenizer, examples, prompt.start, goals, focus, text)


@dataclass(frozen=True)
class Abilities:
    """Form of the prompts with which a model was trained."""

    says_goals: bool = False
    focus: str = "words"
    preamble: int = 0  # lines


def _abilities(model: LoadedModel) -> Abilities:
    """Read a model's abilities from its adapter, else from its config.json. Raises ModelError for invalid ones."""
    file = model.adapter.folder / ABILITIES if model.adapter else None
    if file is None or not file.is_file():
        return Abilities(bool(getattr(model.module.config, SAYS_GOALS, False)))
    remedy = "fetch the adapter again, or train it with keep-train-planner"
    values = read_json(file, remedy)
    known = {"says_goals": (False, True), "focus": tuple(FOCI), "preamble": range(MOST_LINES + 1)}
    for key, value in values.items() if isinstance(values, dict) else [("it", values)]:
        if key not in known or not any(type(value) is type(good) and value == good for good in known[key]):
            raise ModelError(f"{file}: {key} is {value!r}, which no planner was trained with; {remedy}")
    return Abilities(**values)


def make_resources(overrides: Sequence[str]) -> PlannerResources:
    """Load the planner resources of ``configs/agent.yaml`` with ``overrides``. Raises KeepError, or a Hydra error."""
    return agent_resources(compose_agent(overrides))


def agent_resources(config: DictConfig) -> PlannerResources:
    """Load the planner resources of a config that `compose_agent` made. Raises KeepError."""
    if config.eval.threads is not None:
        torch.set_num_threads(config.eval.threads)
    resources = load_resources(config, make_examples(config.env, config.prompt.examples, config.eval.seed))
    with ExitStack() as cleanup:
        cleanup.callback(resources.close)
        resources.planner().session.close()  # so that invalid planner settings fail before the first request
        cleanup.pop_all()
    return resources


def kv_planner(
    engine: Engine, method: MemoryMethod, prompt_format: Format, encoder: SentenceEncoder, config: DictConfig,
    namespace: str = "",
) -> KVPlanner:  # fmt: skip
    """Make a planner on a loaded engine. Planners with different methods can share the engine."""
    if method.context == "bos" and not prompt_format.has_start:
        raise ConfigError(
            "memory.context=bos needs a prompt that begins with the start token, but this tokenizer has none; use "
            "memory.context=system, or name a token with prompt.start"
        )
    budget, context = config.prompt.budget, prompt_format.context()
    session = MemorySession(engine, method, encoder, prompt_format.line, budget, context, namespace)
    settings: dict[str, Any] = {key: value for key, value in config.planner.items() if key != "kind"}
    try:
        return KVPlanner(session, prompt_format, style=config.prompt.style, **settings)
    except TypeError as error:
        raise ConfigError(f"planner={config.planner.name}: {error}") from error


def make_method(memory: DictConfig) -> MemoryMethod:
    """Make the memory method of a config. Raises ConfigError if it is invalid."""
    method = component(OmegaConf.to_container(memory, resolve=True))
    if not isinstance(method, MemoryMethod):
        raise ConfigError(f"memory._target_={memory.get(TARGET)} is not a memory method: use {METHOD}")
    return method


def make_engine(config: DictConfig, transport: str | None = None) -> Engine:
    """Load a config's model into an engine. ``transport`` replaces ``engine.transport``. Raises KeepError."""
    settings = config.engine
    is_throttled = settings.link_gigabytes is not None
    throttle = Throttle(settings.link_gigabytes, settings.link_microseconds) if is_throttled else None
    model = make_model(config.model, config.eval.seed)
    chunk = None if settings.chunk_megabytes is None else 1e6 * settings.chunk_megabytes
    return TransformersEngine(model, transport or settings.transport, throttle, settings.importance, chunk)


def make_model(model: DictConfig, seed: int = 0) -> LoadedModel:
    """Load the model of a config from the package, the disk or the hub."""
    disable_progress_bar()  # KEEP Agent shows its own
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # its warnings are only about retries
    device = usable_device("model.device", model.device)
    name = _model_path(model)
    path, bundled = ADAPTERS.get(name, (name, None))
    adapter = model.get("adapter") or bundled  # older runs have no key
    dtype, console = _dtype(model.dtype, device), make_console(stderr=True)
    with console.status(f"loading {model.name} in {dtype}") if console.is_terminal else nullcontext():
        return load_model(path, dtype, device, model.init, seed, model.quantization, adapter)


def _dtype(name: str, device: str) -> str:
    """Resolve ``auto``: bfloat16, or float32 on CPUs that lack bfloat16 arithmetic and emulate it very slowly."""
    if name != "auto":
        return name
    if torch.device(device).type != "cpu":
        return "bfloat16"
    features = getattr(torch.cpu, "get_capabilities", dict)()  # missing in older torch
    return "bfloat16" if any(features.get(feature) for feature in BFLOAT16_FEATURES) else "float32"


def make_tokenizer(model: DictConfig, loaded: LoadedModel) -> PreTrainedTokenizerBase:
    """Load a model's tokenizer; a random model without one gets planner-tiny's. Raises ModelError if none fits."""
    name = model.tokenizer or str(loaded.folder or _model_path(model))
    has_own = model.tokenizer or loaded.folder is not None or Path(name).is_dir()
    if not has_own and model.init == "random":
        name = str(BUNDLED)
    tokenizer = load_tokenizer(name, loaded.spec.vocab)
    if loaded.files is not None:
        loaded.files.check_unchanged()  # the model's hash covers the tokenizer's files, too
    return tokenizer


def _model_path(model: DictConfig) -> str:
    if OmegaConf.is_missing(model, "name"):
        raise ConfigError("model=custom needs a name: give model=FOLDER_OR_HUB_NAME")
    folder = PLANNERS.get(model.name)
    return str(folder) if folder and (model.init == "pretrained" or folder.is_dir()) else model.name
