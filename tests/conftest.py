"""Fixtures and settings of all tests: data folders, one thread per process, repeatable examples."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.waiting import PATIENCE

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# The duration of an example depends on the machine. All examples of a test share its function-scoped fixtures.
ANY_MACHINE = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]}
settings.register_profile("repeatable", derandomize=True, **ANY_MACHINE)  # the same examples in every run
settings.register_profile("hunt", settings.get_profile("default"), **ANY_MACHINE)
settings.load_profile("repeatable")

# Modules and tests are never garbage: at Python's default rate, the collector's scans of them take an eighth of a run.
gc.set_threshold(50_000, 20, 50)

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("WANDB__SERVICE_WAIT", str(PATIENCE))


@pytest.fixture(scope="session", autouse=True)
def _one_torch_thread() -> None:
    """Use one thread: tiny models are faster, and test processes do not compete for cores."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _registered() -> None:
    """Register the worlds with gymnasium, whether it is imported before or after keep_agent."""
    from envs.worlds import register_worlds

    register_worlds()


@pytest.fixture
def garbage_stays() -> Iterator[None]:
    """Disable the garbage collector, so that reference cycles stay, such as those of an error's frames."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def hears_interrupts() -> Iterator[None]:
    """Handle SIGINT, which background processes of a shell ignore."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def data_root() -> Path:
    """Return the folder with alfred/, wah/ and locomo/; skip the test without KEEP_AGENT_DATA."""
    value = os.environ.get("KEEP_AGENT_DATA")
    if not value:
        pytest.skip("needs the data folder: set KEEP_AGENT_DATA to the folder that holds alfred/ and wah/")
    return Path(value)


@pytest.fixture(scope="session")
def alfred_data(data_root: Path) -> Path:
    """Return the folder with json_2.1.0 and splits/; skip the test without it."""
    path = data_root / "alfred"
    if not path.is_dir():
        pytest.skip(f"needs {path}: KEEP_AGENT_DATA names a folder without alfred/")
    return path


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with an untrained planner model of three layers and its tokenizer, as the trainer writes them."""
    import torch

    from planners.tiny.checkpoint import build, write_planner
    from planners.tiny.shape import Shape
    from planners.tiny.tokenizer import train_tokenizer

    texts = ["task grounded put the mug on the table\n", "next go to cabinet_1\n", "there mug mug_1 closed open\n"] * 20
    tokenizer = train_tokenizer(texts, ["mug_1", "cabinet_1"], vocab_size=256)
    torch.manual_seed(0)
    shape = Shape(hidden=64, layers=3, heads=4, intermediate=96)
    folder = tmp_path_factory.mktemp("tiny")
    write_planner(build(shape.config(tokenizer)), tokenizer, {}, folder)
    return folder


@pytest.fixture(scope="session")
def chat() -> PreTrainedTokenizerFast:
    """Byte-level tokenizer of 320 tokens with a chat template, like an instruct model's."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    special = ["<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    inner.train_from_iterator(
        ["Robot: 1. find a mug, 2. done.\n\n"] * 3,
        trainers.BpeTrainer(special_tokens=special, initial_alphabet=alphabet, vocab_size=320, show_progress=False),
    )
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<|im_end|>", chat_template=CHATML)
