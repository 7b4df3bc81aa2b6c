"""What every room's tests share: where the data is, and as many threads as a small test deserves."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="session", autouse=True)
def _one_torch_thread() -> None:
    """Tiny models are faster on one thread, and two test processes do not fight for the cores."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder that holds alfred/, wah/ and locomo/, or a skip that says how to name it."""
    value = os.environ.get("KEEP_AGENT_DATA")
    if not value:
        pytest.skip("needs the data folder: set KEEP_AGENT_DATA to the folder that holds alfred/")
    return Path(value)


@pytest.fixture(scope="session")
def alfred_data(data_root: Path) -> Path:
    """The folder with json_2.1.0 and splits/, or a skip."""
    path = data_root / "alfred"
    if not path.is_dir():
        pytest.skip(f"needs {path}: KEEP_AGENT_DATA names a folder without alfred/")
    return path


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an untrained planner model of three layers and its tokenizer, as the trainer writes them."""
    import torch

    from planners.checkpoint import Shape, build, save_planner
    from planners.tokenizer import train_tokenizer

    texts = ["task grounded put the mug on the table\n", "next go to cabinet_1\n", "there mug mug_1 closed open\n"] * 20
    tokenizer = train_tokenizer(texts, ["mug_1", "cabinet_1"], vocab_size=256)
    torch.manual_seed(0)
    shape = Shape(hidden=64, layers=3, heads=4, intermediate=96)
    folder = tmp_path_factory.mktemp("tiny")
    save_planner(build(shape.config(tokenizer)), tokenizer, {}, folder)
    return folder
