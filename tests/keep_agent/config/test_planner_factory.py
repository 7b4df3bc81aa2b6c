"""Planners with a model, put together from configs, their worked examples, and whole episodes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_module
from omegaconf import DictConfig
from transformers import PreTrainedTokenizerFast

from envs.setting import goal_reached
from envs.splits import LAST_SEED
from envs.worlds import spec_of
from keep_agent.config.examples import make_examples
from keep_agent.config.factory import make_planner
from keep_agent.config.planner_factory import Abilities, make_model, make_tokenizer
from keep_agent.config.settings import check_settings
from keep_agent.errors import CapacityError, ConfigError, ModelError
from keep_agent.rollout.results import PARTS
from memory.engine.models.tokenizer import load_tokenizer
from planners.prompts.preamble import preamble
from planners.tiny.checkpoint import SAYS_GOALS
from tests.keep_agent.agent.playing import play_episode, small_config
from tests.keep_agent.rollout.houses import MUG

STYLES = [pytest.param("plain", marks=pytest.mark.slow), "linked"]
METHODS = ("keep", "full_recompute", "full_reuse", "prefix_cache", "sparsex")
FORGETFUL = ("streaming", "h2o", "snapkv", "intentkv", "intentkv_rule")
BUDGET = 80  # less than a prompt has rows, more than those that have to stay
SETTING = ("prompt.encoder=hashed", "env.skills=grounded", "env.observability=partial")


@pytest.fixture(autouse=True)
def _hydra() -> Iterator[None]:
    with initialize_config_module("configs", version_base="1.3"):
        yield


def config(model: Path, *overrides: str) -> DictConfig:
    return compose("alfred", ["model=custom", f"model.name='{model}'", *SETTING, *overrides])


play = partial(play_episode, max_steps=6)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("name", METHODS)
def test_every_method_plays_an_episode_and_its_numbers_add_up(tiny_model: Path, name: str, style: str) -> None:
    result, steps = play(make_planner(config(tiny_model, f"planner={name}", f"prompt.style={style}")))
    assert len(steps) == len(result.steps) >= 2
    for numbers, entry in zip(result.steps, steps, strict=True):
        assert sum(numbers.parts[part] for part in PARTS) == pytest.approx(numbers.ttft_ms)
        assert 0 < numbers.ttft_overlapped_ms <= numbers.ttft_ms < numbers.decision_ms
        assert numbers.prompt_tokens == len(entry["token_ids"])
        assert numbers.hit_tokens <= numbers.memory_tokens < numbers.prompt_tokens
        assert 0 < numbers.computed_ratio <= 1
        assert entry["scores"][0][0] == entry["skill"]
    assert [numbers.cold for numbers in result.steps] == [True] + [False] * (len(steps) - 1)
    if name == "full_recompute":
        assert all(numbers.computed_ratio == 1 and not numbers.hit_tokens for numbers in result.steps)
    else:
        assert sum(numbers.hit_tokens for numbers in result.steps) > 0


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("name", [*FORGETFUL, "full_cache", "semantic"])
def test_a_continued_cache_plays_an_episode_within_its_budget(tiny_model: Path, name: str, style: str) -> None:
    budget = [f"memory.retention.budget={BUDGET}"] if name in FORGETFUL else []
    own_head = ["memory.retention.head=null"] if name == "intentkv" else []  # no head comes with a random model
    planner = make_planner(config(tiny_model, f"planner={name}", f"prompt.style={style}", *budget, *own_head))
    result, steps = play(planner)
    assert len(steps) == len(result.steps) >= 3
    for before, numbers in pairwise(result.steps):
        assert before.prompt_tokens <= numbers.prefix_tokens < numbers.prompt_tokens  # a continued prompt
        assert numbers.computed_ratio < 1
    for numbers, entry in zip(result.steps, steps, strict=True):
        assert sum(numbers.parts[part] for part in PARTS) == pytest.approx(numbers.ttft_ms)
        assert entry["scores"][0][0] == entry["skill"]
        assert numbers.live_tokens == (BUDGET if name in FORGETFUL else numbers.prompt_tokens)
    last = result.steps[-1]
    assert (last.live_reads < last.raw_reads) == (name in FORGETFUL)


def test_a_trace_has_the_parts_of_the_prompt(tiny_model: Path) -> None:
    _, steps = play(make_planner(config(tiny_model, "planner=keep")))
    step = json.loads(json.dumps(steps[-1]))
    rows, layers = len(step["token_ids"]), 3
    assert step["context"] <= step["units"][0]["start"] and step["query"] < rows
    starts = [*(unit["start"] for unit in step["units"]), step["query"]]
    assert [unit["start"] + unit["tokens"] for unit in step["units"]] == starts[1:]
    assert any(unit["hit"] for unit in step["units"]) and all(unit["block"] for unit in step["units"])
    assert all(-1 <= segment["last_layer"] < layers for segment in step["segments"])
    kinds = [kind for _, kind, *_ in step["computes"]]
    assert len(step["active_rows"]) == kinds.count("attention") == kinds.count("mlp") == layers
    assert step["active_rows"] == sorted(step["active_rows"], reverse=True)
    known = {segment["id"] for segment in step["segments"]} | {""}
    assert step["hops"] and all({edge[0], edge[1]} <= known for hop in step["hops"] for edge in hop["edges"])
    assert step["loads"] and all(start <= end for _, _, start, end, _ in step["loads"])
    assert step["timings"]["ttft"] > 0


def test_generation_is_another_policy(tiny_model: Path) -> None:
    planner = make_planner(config(tiny_model, "planner=keep", "planner.policy=generate", "planner.max_new_tokens=4"))
    assert play(planner, max_steps=2)[1]


@pytest.mark.parametrize(("learned", "setting"), [(True, None), (False, None), (False, True), (True, False)])
def test_a_model_trained_for_goals_says_it(
    tiny_model: Path, tmp_path: Path, learned: bool, setting: bool | None
) -> None:
    model = Path(shutil.copytree(tiny_model, tmp_path / "model"))
    model_config = json.loads((model / "config.json").read_text()) | {SAYS_GOALS: learned}
    (model / "config.json").write_text(json.dumps(model_config))
    (model / "SHA256SUMS").unlink(missing_ok=True)  # the checksums of the unchanged config
    planner = make_planner(config(model, *([] if setting is None else [f"prompt.goal={setting}"])))
    result, steps = play(planner, max_steps=2)
    expected = learned if setting is None else setting
    first, second, *_ = result.steps
    assert (first.longest_tokens < first.prompt_tokens) == expected and second.longest_tokens == second.prompt_tokens
    planner.reset(MUG.instruction, "grounded")
    ready = planner.prefill()
    assert ready.reads.raw >= ready.counts.prompt_tokens  # rows of both prompts
    assert all(("understood" in entry.get("extra", {})) == expected for entry in steps)


@pytest.mark.parametrize("trained", [0, 3])
@pytest.mark.parametrize("setting", [None, 0, 2])
def test_prompts_begin_with_the_lines_that_the_model_was_trained_with(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, trained: int, setting: int | None
) -> None:
    monkeypatch.setattr("keep_agent.config.planner_factory._abilities", lambda _: Abilities(preamble=trained))
    planner = make_planner(config(tiny_model, f"prompt.preamble={'null' if setting is None else setting}"))
    _, steps = play(planner, max_steps=1)
    lines = trained if setting is None else setting
    due = load_tokenizer(str(tiny_model)).encode(preamble("plain", lines), add_special_tokens=False)
    start = [*steps[0]["token_ids"][:1], *due]
    assert steps[0]["token_ids"][: len(start)] == start
    assert ("stage" in planner._format.decode(start)) == bool(lines)
    assert len(planner._format.context()) == len(start)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("prompt.preamble=-1", "prompt.preamble=-1 does not work"),
        ("prompt.preamble=many", "prompt.preamble=many does not work"),
        ("prompt.preamble=1.5", "prompt.preamble=1.5 does not work"),
        ("prompt.preamble=17", "prompt.preamble=17 is too many; give 16 at most"),
        ("prompt.format=lota prompt.preamble=8", "prompt.preamble=8 has no effect on LoTA-Bench's prompts"),
        ("prompt.format=lota prompt.focus=line", "prompt.focus=line has no effect on LoTA-Bench's prompts"),
    ],
)
def test_wrong_settings_of_prompts_are_refused(tiny_model: Path, settings: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_settings(config(tiny_model, *settings.split()))


def test_an_episode_does_not_depend_on_the_one_before(tiny_model: Path) -> None:
    planner = make_planner(config(tiny_model, "planner=keep"))
    skills = [[step["skill"] for step in play(planner)[1]] for _ in range(2)]
    assert skills[0] == skills[1]


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory: pytest.TempPathFactory, chat: PreTrainedTokenizerFast) -> Path:
    """A Qwen2.5-shaped configuration (small) with a tokenizer that has a chat template; no weights."""
    folder = tmp_path_factory.mktemp("chat")
    chat.save_pretrained(folder)
    small_config(320, 8192, architectures=["Qwen2ForCausalLM"]).save_pretrained(folder)
    return folder


def test_an_instruct_model_with_random_weights_plays_with_lotas_prompt(chat_model: Path) -> None:
    settings = "planner=keep", "prompt=lota", "prompt.encoder=hashed", "prompt.examples=2", "model.init=random"
    _, (step, *_) = play(make_planner(config(chat_model, *settings, "model.dtype=float32")), max_steps=2)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(chat_model)
    context = tokenizer.decode(step["token_ids"][: step["context"]])
    assert context.startswith("<|im_start|>user") and context.count("Human: ") == context.count("Robot: 1. ") == 2
    query = tokenizer.decode(step["token_ids"][step["query"] :])
    assert "put the mug on the table" in query and query.endswith("<|im_start|>assistant\nRobot: 1.")


def test_units_may_attend_to_a_start_token_alone(chat_model: Path) -> None:
    settings = "planner=keep", "memory.context=bos", "model.init=random"
    for preamble_lines in ("0", "8"):
        with pytest.raises(ConfigError, match="context=bos needs a prompt that begins with the start token"):
            make_planner(config(chat_model, *settings, f"prompt.preamble={preamble_lines}"))
    planner = make_planner(config(chat_model, *settings, "prompt.start='<|im_start|>'"))
    assert play(planner, max_steps=1)[1][0]["context"] == 1


def test_auto_is_bfloat16_on_cpus_with_its_arithmetic(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model_settings = config(tiny_model, "model.dtype=auto").model
    for features, dtype in (({"avx2": True}, torch.float32), ({"amx_bf16": True}, torch.bfloat16)):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda features=features: features)
        assert make_model(model_settings).spec.dtype is dtype
    monkeypatch.delattr(torch.cpu, "get_capabilities")
    assert make_model(model_settings).spec.dtype is torch.float32


def test_models_that_cannot_be_loaded_are_named(tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="model=custom needs a name"):
        make_model(compose("alfred", ["model=custom"]).model)
    with pytest.raises(ModelError, match="/no/where"):
        make_model(config(Path("/no/where")).model)
    with pytest.raises(CapacityError, match=r"32\.\d+ billion"):
        make_model(config(Path("qwen2.5-32b"), "model.init=random", "model.dtype=float32").model)
    with pytest.raises(ModelError, match=r"retention head was trained for head_dim 32, the model's is 16"):
        make_planner(config(tiny_model, "planner=intentkv", "memory.retention.head=planner-tiny"))
    with pytest.raises(ModelError, match=r"no retention head in .*tiny.*, or do without \(planner=intentkv_rule\)"):
        make_planner(config(tiny_model, "planner=intentkv"))
    for file in tiny_model.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes()[: 2000 if file.suffix == ".safetensors" else None])
    with pytest.raises(ModelError, match=r"model\.safetensors"):
        make_model(config(tmp_path).model)
    (tmp_path / "tokenizer.json").write_text("{")
    settings = config(tmp_path, "planner=keep", "model.init=random")
    with pytest.raises(ModelError, match=r"the tokenizer of .*model\.tokenizer"):
        make_planner(settings)


def test_a_tokenizer_that_was_replaced_since_it_was_hashed_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_model, tmp_path / "model"))
    settings = config(folder).model
    loaded = make_model(settings)
    make_tokenizer(settings, loaded)
    (folder / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes() + b"\n")
    with pytest.raises(ModelError, match=r"tokenizer\.json was changed while the model was loaded; load it again"):
        make_tokenizer(settings, loaded)


def test_settings_a_planner_does_not_know_are_refused(tiny_model: Path) -> None:
    for setting in ("+planner.colour=red", "planner.policy=wizard", "planner.kind=wizard"):
        with pytest.raises(ConfigError, match="colour|wizard"):
            make_planner(config(tiny_model, "planner=keep", setting))


@pytest.mark.parametrize("world", ["alfred", "wah"])
def test_examples_are_training_plans_of_different_tasks(world: str) -> None:
    env = compose(world, ["planner=expert", "env.skills=grounded"]).env
    examples = make_examples(env, 5)
    assert len({example.instruction for example in examples}) == 5
    assert all(example.skills[-1] == "done" and len(example.skills) > 2 for example in examples)
    assert make_examples(env, 5) == examples and make_examples(env, 0) == []
    assert len(make_examples(env, 2, seed=LAST_SEED + 1)) == 2


@pytest.mark.parametrize("setting", ["env.rules=lota", "env.rules=strict", "env.skills=grounded"])
def test_examples_reach_their_goals_under_the_settings(setting: str) -> None:
    env = compose("wah", ["planner=expert", setting]).env
    world = spec_of(env.id)
    first = {episode.tasks[0].instruction: episode for episode in world.training(None, seed=LAST_SEED, limit=40)}
    running = world.setting(skills=env.skills, rules=env.rules)
    for example in make_examples(env, 12):
        episode = first[example.instruction]
        home = running.begin(episode)
        assert all(running.space.execute(home, skill).ok for skill in example.skills)
        assert goal_reached(running, home, episode.tasks[0])


def test_played_tasks_are_no_examples() -> None:
    with pytest.raises(ConfigError, match="examples would show tested plans"):
        make_examples(compose("alfred", ["planner=expert", "env.data=x", "env.split=train"]).env, 2)
    generated = compose("wah", ["planner=expert", "env.data=x", "env.split=train"]).env
    assert len(make_examples(generated, 2)) == 2  # generated: examples never come from files
