"""Training of an adapter: only the adapter changes, the run resumes, and its folder is loaded beside its base model."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from keep_agent.config.planner_factory import format_of
from keep_agent.errors import ConfigError, ModelError
from memory.engine.models.load import load_model
from memory.engine.models.tiny_models import tiny_model
from memory.engine.models.tokenizer import load_tokenizer
from memory.engine.transformers.engine import TransformersEngine
from planners.prompts.preamble import preamble
from planners.train import check_options, parser
from planners.training.batches import ADAPTER_LEVELS, fitted
from planners.training.forward import forward, last_hidden
from planners.training.packed_attention import collate
from planners.training.packing import IGNORE, PREAMBLE_LINES, PackedExample, Packer, PromptForm, Slot, SlotMix
from planners.training.rollout_files import Rollout
from planners.training.trainer import Trainer

pytest.importorskip("peft", reason="needs the extra peft")
Make = Callable[..., Rollout]
SMALL = "--rank 4 --batch-tokens 1500 --report 0 --transcript 400 --warmup 5 --lr 5e-3 --precision float32".split()
IDS = torch.arange(3, 40)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, chat: PreTrainedTokenizerFast) -> Path:
    """Folder with a tiny model whose heads share KV heads, and a byte-level tokenizer with a BOS token."""
    folder = tmp_path_factory.mktemp("models") / "tiny-llama"
    model = tiny_model("llama", layers=2, vocab_size=len(chat)).module
    assert model.config.num_key_value_heads < model.config.num_attention_heads
    model.save_pretrained(folder)
    chat.save_pretrained(folder)
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"bos_token": "<|im_start|>"}))
    return folder


@pytest.fixture
def arguments(data: Path, base: Path, tmp_path: Path) -> Callable[..., argparse.Namespace]:
    def make(steps: int, *more: str) -> argparse.Namespace:
        limits = ["--minutes", "1e5", "--steps", str(steps)]
        options = ["--data", str(data), "--out", str(tmp_path / "run"), "--base", str(base), *limits, *SMALL, *more]
        return parser().parse_args(options)

    return make


def run(args: argparse.Namespace) -> Trainer:
    trainer = Trainer(args)
    trainer.run()
    trainer.close()
    return trainer


def test_an_adapter_learns_resumes_and_is_loaded_beside_its_base(
    arguments: Callable[..., argparse.Namespace], base: Path, tmp_path: Path
) -> None:
    before = load_file(base / "model.safetensors")
    trainer = run(arguments(40))
    losses = [row["loss"] for row in trainer.progress.curve]
    assert len(losses) == 40 and sum(losses[-10:]) < 0.95 * sum(losses[:10])
    frozen = {name: value for name, value in trainer.model.named_parameters() if not value.requires_grad}
    assert all(torch.equal(value, before[name.replace(".base_layer", "")]) for name, value in frozen.items())
    loaded = load_model(base, "float32", adapter=tmp_path / "run")
    with torch.no_grad():
        for name, value in trainer.trained.items():
            value.copy_(trainer.average[name].bfloat16())  # the published adapter is the mean, in bfloat16
    plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    with TransformersEngine(loaded) as engine:
        merged = engine.forward_plain(IDS)
    with torch.no_grad():
        due = trainer.model.set_attn_implementation("eager") or trainer.model(IDS[None]).logits[0]
        unchanged = plain(IDS[None]).logits[0]
    assert (merged - due).norm() / due.norm() < 1e-5 < (merged - unchanged).norm() / unchanged.norm()
    settings = {"format": "default", "style": "natural", "start": None, "goal": None, "focus": None}
    form = format_of(OmegaConf.create(settings), loaded, load_tokenizer(str(base)))
    assert form.decode(form.context()).endswith(preamble("natural", PREAMBLE_LINES))
    assert form.goal("grounded", "find a mug") and form.focus("grounded") > 3 and form.after_focus("grounded")
    resumed = run(arguments(2))
    assert (resumed.progress.step, len(resumed.calls)) == (42, 2)
    with pytest.raises(ConfigError, match=r"holds an adapter of --base .* with --rank 4; give these"):
        Trainer(arguments(2, "--rank", "8"))
    going_on = ["--init", str(tmp_path / "run"), "--out", str(tmp_path / "second")]
    second = Trainer(arguments(2, *going_on))
    assert second.progress.step == 42 and second.checkpoint is None
    assert all(torch.equal(value, resumed.average[name].bfloat16()) for name, value in second.trained.items())
    second.run()
    second.close()
    assert run(arguments(1, *going_on)).progress.step == 45
    with pytest.raises(ConfigError, match="did not start from the weights that"):
        Trainer(arguments(1, "--init", str(base)))


@pytest.mark.parametrize("frozen", [False, True])
def test_packed_attention_equals_the_plain_model_with_shared_kv_heads(
    frozen: bool, arguments: Callable[..., argparse.Namespace], base: Path, make_rollout: Make
) -> None:
    trainer = Trainer(arguments(1))
    trainer.close()
    start = trainer.start
    packer = Packer(start.encode, SlotMix(steps=3, trajectories=1), form=PromptForm(own_line=True))
    (pack,) = packer.packs(make_rollout(), "natural")
    batch = collate([pack], start.bos, start.pad, torch.float32, frozen=frozen)
    plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).eval()
    width = (batch.ids.shape[1] - batch.memory) // batch.slots
    with torch.no_grad():
        model, kv = trainer.model.eval(), {} if frozen else None
        whole, memory = slice(None), slice(0, batch.memory)
        parts = [
            last_hidden(model, batch, rows, kv)
            for rows in ((memory, slice(batch.memory, None)) if frozen else (whole,))
        ]
        hidden = torch.cat(parts, 1)[0]
        for number, slot in enumerate(pack.slots):
            lines = [token for name, ids in pack.memory if name not in slot.hidden_lines for token in ids]
            if slot.hidden_lines:  # positions of hidden lines stay free
                continue
            due = plain.model(input_ids=torch.tensor([[start.bos, *lines, *slot.ids]]))[0][0, -len(slot.ids) :]
            first = batch.memory + number * width
            assert torch.allclose(hidden[first : first + len(slot.ids)], due, atol=1e-4)


def test_a_frozen_memory_gives_the_same_loss_and_no_gradient_through_its_rows(
    arguments: Callable[..., argparse.Namespace], make_rollout: Make
) -> None:
    trainer = Trainer(arguments(1))
    trainer.close()
    start = trainer.start
    packer = Packer(start.encode, SlotMix(steps=3, trajectories=2), form=PromptForm(own_line=True))
    (pack,) = packer.packs(make_rollout(), "natural")
    gradients, losses = [], []
    for frozen in (False, True):
        batch = collate([pack], start.bos, start.pad, torch.float32, frozen=frozen)
        logits, labels, _ = forward(trainer.model, batch, torch.float32)
        losses.append(torch.nn.functional.cross_entropy(logits, labels))
        trainer.model.zero_grad()
        losses[-1].backward()
        gradients.append(torch.cat([value.grad.flatten() for value in trainer.trained.values()]))
    assert torch.allclose(*losses, atol=1e-5)
    likeness = torch.nn.functional.cosine_similarity(*gradients, dim=0)
    assert 0.3 < likeness < 0.9999


def test_packs_are_shortened_to_the_rows_of_a_batch() -> None:
    def slot(length: int, targets: int) -> Slot:
        labels = (IGNORE,) * (length - targets) + tuple(range(targets))
        return Slot("step", tuple(range(length)), labels)

    pack = PackedExample((("a", (1,) * 99),), (slot(40, 3), slot(60, 3), slot(300, 280), slot(30, 3)))
    short = fitted(pack, 112 + 64 * 2)
    assert [len(s.ids) for s in short.slots] == [40, 60]
    cut = fitted(PackedExample(pack.memory, pack.slots[2:3]), 112 + 64)
    assert [len(s.ids) for s in cut.slots] == [64] and cut.slots[0].labels[20:] == tuple(range(44))
    assert fitted(PackedExample(pack.memory, (slot(300, 3),)), 112 + 64).slots == ()  # no target is left
    assert [len(s.ids) for s in fitted(PackedExample(pack.memory, pack.slots[2:3]), 112 + 70).slots] == [64]
    assert fitted(pack, 100).slots == ()
    assert [len(s.ids) for s in fitted(pack, 100, frozen=True).slots] == [40]  # 112 frozen rows count as 39


def test_the_levels_have_all_styles_and_rising_sizes() -> None:
    assert {style for level in ADAPTER_LEVELS for style in level.styles} == {"natural", "plain", "linked"}
    assert [level.lines for level in ADAPTER_LEVELS] == sorted(level.lines for level in ADAPTER_LEVELS)


def test_wrong_options_are_refused(arguments: Callable[..., argparse.Namespace], base: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--hidden 96 is for a new model, and --base names an existing one"):
        check_options(arguments(1, "--hidden", "96"))
    with pytest.raises(ConfigError, match="--rank 4 is for an adapter, which needs --base"):
        check_options(arguments(1, "--base", ""))
    with pytest.raises(ConfigError, match="leave --deepen out"):
        check_options(arguments(1, "--deepen", "4"))
    file = base / "tokenizer_config.json"
    settings = json.loads(file.read_text())
    file.write_text(json.dumps({key: value for key, value in settings.items() if key != "bos_token"}))
    try:
        with pytest.raises(ModelError, match="has no BOS token"):
            Trainer(arguments(1))
    finally:
        file.write_text(json.dumps(settings))
