"""The trainer end to end on a very small model: from rollout files to a planner folder that can be loaded."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen2Config, Qwen2ForCausalLM

from keep_agent.errors import ConfigError, KeepError, ModelError
from memory.engine.models.load import load_model
from memory.files.checksums import CHECKSUMS
from planners.tiny.checkpoint import SAYS_GOALS, WEIGHTS, build, load_planner
from planners.tiny.shape import Shape, lock
from planners.tiny.tokenizer import BOS, PAD, train_tokenizer
from planners.train import RANGES, main, parser
from planners.training.forward import forward
from planners.training.induction_init import seed_induction
from planners.training.options import OPTIMIZERS
from planners.training.packed_attention import collate
from planners.training.packing import Packer, SlotMix
from planners.training.parallel import ProcessGroup, run_parallel
from planners.training.rollout_files import Rollout, read_rollouts
from planners.training.trainer import Trainer, train

Make = Callable[..., Rollout]
Check = Callable[..., None]
SLOW = pytest.mark.slow
SMALL = "--hidden 96 --layers 2 --heads 3 --intermediate 96 --vocab 600 --batch-tokens 1500 --report 0.5".split()


def arguments(data: Path, out: Path, steps: int, *more: str) -> argparse.Namespace:
    """Parse the options of a run that ends after ``steps``."""
    limits = ["--minutes", "1e5", "--steps", str(steps)]
    return parser().parse_args(["--data", str(data), "--out", str(out), *limits, *SMALL, *more])


@pytest.fixture
def trained(data: Path, tmp_path: Path) -> Trainer:
    """Train for three steps in the folder ``run``."""
    trainer = Trainer(arguments(data, tmp_path / "run", 3))
    trainer.run()
    return trainer


def _train_and_write(dist: ProcessGroup, args: argparse.Namespace) -> None:
    trainer = Trainer(args, dist)
    trainer.run()
    Path(args.out).mkdir(exist_ok=True)  # the leading process may still be saving
    (Path(args.out) / f"sum{dist.rank}").write_text(repr([p.double().sum().item() for p in trainer.model.parameters()]))
    trainer.close()


@pytest.mark.parametrize("optimizer", [OPTIMIZERS[0], *(pytest.param(kind, marks=SLOW) for kind in OPTIMIZERS[1:])])
def test_training_lowers_the_loss_and_resumes_where_it_stopped(optimizer: str, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    finished = Trainer(arguments(data, out, 60, "--optimizer", optimizer, "--report", "0"))
    finished.run()
    first = json.loads((out / "training.json").read_text())
    losses = [row["loss"] for row in first["progress"]["curve"]]
    assert len(losses) == first["progress"]["step"] == 60 and sum(losses[-15:]) < 0.95 * sum(losses[:15])
    resumed = Trainer(arguments(data, out, 3, "--optimizer", optimizer))
    before, after = finished.optimizers.state(), resumed.optimizers.state()
    assert before.keys() == after.keys() and all(torch.equal(before[key], after[key]) for key in before)
    assert resumed.progress.step == first["progress"]["step"]
    assert json.loads((out / "config.json").read_text())[SAYS_GOALS]
    resumed.run()
    second = json.loads((out / "training.json").read_text())["progress"]
    assert all(second[part] > first["progress"][part] for part in ("step", "seconds"))


@SLOW
def test_processes_that_train_together_have_equal_weights(data: Path, tmp_path: Path) -> None:
    """Two processes take half of the batches each; the weights that each one writes are equal."""
    sums = []
    for size in (1, 2):
        args = arguments(data, out := tmp_path / str(size), 4, "--accumulate", "2", "--threads", "1")
        assert run_parallel(size, _train_and_write, args) == 0
        sums.append([(out / f"sum{rank}").read_text() for rank in range(size)])
        assert json.loads((out / "training.json").read_text())["progress"]["step"] == 4
    assert len(set(sums[1])) == 1 and sums[0] != sums[1]
    assert run_parallel(2, train, arguments(tmp_path / "nothing", tmp_path / "run", 1)) == 2


@SLOW
@pytest.mark.parametrize("decay", ["0", "0.9"])
def test_processes_share_one_clock(data: Path, tmp_path: Path, decay: str) -> None:
    """With a clock each, their learning rates and then their weights would differ."""
    limits = ["--minutes", "0.1", "--decay", decay, "--threads", "1", "--accumulate", "2"]
    assert run_parallel(2, _train_and_write, arguments(data, tmp_path / "run", -1, *limits)) == 0
    assert len({(tmp_path / "run" / f"sum{rank}").read_text() for rank in range(2)}) == 1


def test_every_number_has_a_range() -> None:
    numbers = {action.dest for action in parser()._actions if action.type in (int, float)}
    assert numbers == {*RANGES, "lr"}
    for name, (least, most) in RANGES.items():
        assert least <= parser().get_default(name) <= most


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--device cud", "--device=cud is not a device; give auto, cpu, cuda, .*; did you mean 'cuda'?"),
        ("--threads -1", "--threads -1 does not work; give a number from 0 to 4096"),
        ("--processes 0", "--processes 0 does not work; give a number from 1 to 1024"),
        ("--hidden 7", "--hidden 7 --heads 6 make no model; give 3 heads or more"),
        ("--hidden 192 --heads 2", "--hidden 192 --heads 2 make no model"),
        ("--layers 0", "--layers 0 does not work"),
        ("--batch-tokens 0", "--batch-tokens 0 does not work"),
        ("--average 3", "--average 3.0 does not work; give a number from 0 to 1"),
        ("--minutes nan", "--minutes nan does not work"),
        ("--save -1", "--save -1.0 does not work"),
        ("--lr nan", "--lr nan is not a learning rate"),
        ("--out FILE", "--out FILE cannot be a folder, since FILE is not one; name another place"),
        ("--out FILE/run", "--out FILE/run cannot be a folder, since FILE is not one"),
        ("--data nowhere", "no .*rollout files in 'nowhere'; write some with .*eval.dataset"),
        ("--data FILE", "FILE is a file; name the folder that holds it"),
        ("--init nowhere", "--init nowhere is not a planner's folder: it has no training.json; name another"),
        ("--init FILE", "--init FILE is not a planner's folder"),
    ],
)
def test_a_mistyped_option_loads_no_torch(option: str, message: str, data: Path, check_refusal: Check) -> None:
    check_refusal(main, "planners.training.trainer", ["--data", str(data), *option.split()], message)


@pytest.mark.parametrize("hidden", [12, 24])
def test_the_smallest_shapes_can_be_seeded(hidden: int) -> None:
    shape = Shape(hidden=hidden, layers=1, heads=3, intermediate=1)
    shape.check()
    seed_induction(build(shape.config(train_tokenizer(["put it\n"], []))))


def test_a_run_folder_in_use_by_another_process_is_refused(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["train", "--data", str(data), "--out", str(tmp_path / "run")])
    with lock(tmp_path / "run"), pytest.raises(SystemExit, match="2"):
        main()
    assert f"another process is at work in {tmp_path / 'run'}" in capsys.readouterr().err


@pytest.mark.usefixtures("trained")
def test_another_optimiser_loads_the_state_that_it_shares(data: Path, tmp_path: Path) -> None:
    trainer = Trainer(arguments(data, tmp_path / "run", 3, "--optimizer", "muon"))
    keys = str([*trainer.optimizers.state()])
    assert "embed_tokens" in keys and "q_proj.weight" not in keys
    trainer.run()
    assert "model.layers.0.self_attn.q_proj.weight.momentum_buffer" in trainer.optimizers.state()


def test_the_saved_folder_is_a_plain_hugging_face_model(trained: Trainer, tmp_path: Path) -> None:
    plain = Qwen2ForCausalLM.from_pretrained(tmp_path / "run", dtype=torch.float32)
    packed, tokenizer, _ = load_planner(tmp_path / "run")
    for (name, a), (_, b) in zip(plain.named_parameters(), packed.named_parameters(), strict=True):
        assert torch.equal(a, b), name
    assert tokenizer.get_vocab() == trained.start.tokenizer.get_vocab()


@pytest.mark.parametrize("trajectories", [1, 2])
@pytest.mark.usefixtures("trained")
def test_packed_attention_equals_the_plain_model(data: Path, tmp_path: Path, trajectories: int) -> None:
    """A trajectory slot gives the same states as the same tokens in one sequence; a single slot is computed as one."""
    packed, tokenizer, _ = load_planner(tmp_path / "run")
    packed.eval()
    plain = Qwen2ForCausalLM.from_pretrained(tmp_path / "run", dtype=torch.float32).eval()
    rollout = next(read_rollouts(data / "a.jsonl.gz"))
    mix = SlotMix(trajectories=trajectories, steps=0, probes=trajectories - 1)
    (pack,) = Packer(lambda text: tokenizer.encode(text).ids, mix).packs(rollout, "linked")
    bos = tokenizer.token_to_id(BOS)
    batch = collate([pack], bos, tokenizer.token_to_id(PAD), torch.float32)
    assert batch.causal == (trajectories == 1)
    with torch.no_grad():
        hidden = packed.model(
            input_ids=batch.ids, position_ids=batch.positions, attention_mask={"full_attention": None},
            use_cache=False, pack=batch,
        ).last_hidden_state[0]  # fmt: skip
        memory = [token for _, ids in pack.memory for token in ids]
        width = (batch.ids.shape[1] - batch.memory) // batch.slots
        for number, slot in enumerate(pack.slots):
            rows = torch.tensor([[bos, *memory, *slot.ids]])
            expected = plain.model(rows).last_hidden_state[0, 1 + len(memory) :]
            start = batch.memory + number * width
            torch.testing.assert_close(hidden[start : start + len(slot.ids)], expected, rtol=1e-3, atol=1e-3)


def test_the_seeded_model_attends_to_fixed_offsets() -> None:
    config = Qwen2Config(
        vocab_size=64, hidden_size=96, intermediate_size=96, num_hidden_layers=2, num_attention_heads=3,
        num_key_value_heads=3, rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )  # fmt: skip
    model = build(config)
    seed_induction(model)
    model.set_attn_implementation("eager")
    weights = model(torch.arange(20)[None], output_attentions=True).attentions[0][0]
    for head, offset in enumerate((1, 2, 3)):
        assert weights[head, 10].argmax() == 10 - offset and weights[head, 10, 10 - offset] > 0.5


def test_labels_are_shifted_by_one(data: Path, tmp_path: Path) -> None:
    trainer = Trainer(arguments(data, tmp_path / "run", 1))
    _, batch = trainer.source.next()
    _, labels, rows = forward(trainer.model, batch)
    assert torch.equal(batch.ids.flatten()[rows + 1], labels)


def test_corrupt_weights_are_refused(trained: Trainer, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    raw = bytearray((out / WEIGHTS).read_bytes())
    raw[-100] ^= 1
    for content in (bytes(raw), b"not weights"):
        (out / WEIGHTS).write_bytes(content)
        for use in (load_model, load_planner, lambda folder: Trainer(arguments(data, folder, 3))):
            with pytest.raises(ModelError, match=r"model\.safetensors is corrupt"):
                use(out)
    (out / "checkpoints" / "latest" / CHECKSUMS).unlink()
    with pytest.raises(ModelError, match=r"cannot load .*model\.safetensors .*; restore it"):
        load_planner(out)


def test_a_gradient_that_is_not_finite_ends_the_training(data: Path, tmp_path: Path) -> None:
    trainer = Trainer(arguments(data, tmp_path / "run", 2))
    with torch.no_grad():
        trainer.model.model.norm.weight[0] = float("nan")
    with pytest.raises(ModelError, match=r"gradient of step 1 is not finite in .*; go on from the last checkpoint"):
        trainer.run()
    trainer.close()
    assert not (tmp_path / "run").exists()


def test_weights_of_another_model_are_refused(tiny_model: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_model, tmp_path, dirs_exist_ok=True)
    (tmp_path / CHECKSUMS).unlink()  # checksums of the old weights
    state = load_file(tmp_path / WEIGHTS)
    save_file({**state, "model.norm.weight": torch.ones(3)}, tmp_path / WEIGHTS)
    with pytest.raises(ModelError, match="do not fit its config.json"):
        load_planner(tmp_path)
    del state["model.norm.weight"]
    save_file(state, tmp_path / WEIGHTS)
    with pytest.raises(ModelError, match="for example model.norm.weight"):
        load_planner(tmp_path)


def test_the_published_weights_are_the_running_mean(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    trainer = Trainer(arguments(data, run, 3))
    before = [p.clone() for p in trainer.average.values()]
    trainer.run()
    trainer.close()
    master, mean = (load_file(run / name) for name in ("master.safetensors", "average.safetensors"))
    shipped = load_file(run / "model.safetensors")
    changed = [not torch.equal(a, b) for a, b in zip(before, trainer.average.values(), strict=True)]
    assert all(changed) and not any(p.requires_grad for p in trainer.average.values())
    for name, tensor in mean.items():
        assert torch.equal(shipped[name], tensor.bfloat16()) and not torch.equal(tensor, master[name])
    resumed = Trainer(arguments(data, run, 1))
    resumed.close()
    assert all(torch.equal(p, mean[name]) for name, p in resumed.average.items())


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (
            "--init planners/planner_tiny",
            "is for a new run: the run in .* did not start from the weights that",
        ),
        ("--deepen 4", "is for a new run with --init; .* has 2 layers: leave --deepen out"),
        ("--hidden 48", "is for new models; the model in .* has 96: leave --"),
        ("--vocab 900", "is for new models; the model in .* has 600: leave --"),
    ],
)
def test_options_of_another_shape_are_refused(option: str, message: str, data: Path, tmp_path: Path) -> None:
    """An ignored option would be recorded in training.json as the shape of the model."""
    Trainer(arguments(data, tmp_path / "run", 1)).run()
    with pytest.raises(ConfigError, match=f"{option} {message}"):
        Trainer(arguments(data, tmp_path / "run", 1, *option.split()))
    paths = ["--data", str(data), "--out", str(tmp_path / "run"), "--minutes", "1", "--steps", "1"]
    Trainer(parser().parse_args(paths)).run()  # without options of the shape
    calls = json.loads((tmp_path / "run" / "training.json").read_text())["calls"]
    assert [(call["args"]["hidden"], call["args"]["vocab"]) for call in calls] == [(96, 600)] * 2


@pytest.mark.parametrize(
    ("rollouts", "device", "message"),
    [
        ("missing", "cpu", "eval.dataset"),
        ("", "cuda:99", r"--device='cuda:99' cannot be used here .*; use auto, cpu or"),
    ],
)
def test_missing_rollouts_and_devices_are_refused(
    data: Path, tmp_path: Path, rollouts: str, device: str, message: str
) -> None:
    with pytest.raises(KeepError, match=message):
        Trainer(arguments(data / rollouts, tmp_path / "run", 1, "--device", device))
