"""Settings: overrides need a key, an option and a kind of value that ``configs`` has."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

from keep_agent.agent.agent import Agent
from keep_agent.config import planner_factory
from keep_agent.config.compose import choose_agent, compose_agent, compose_settings
from keep_agent.config.known_settings import UnknownSetting, check_known
from keep_agent.config.model_names import check_model
from keep_agent.config.setting_types import EXTRA_KINDS, ValueKind, allowed_kinds, check_kinds
from keep_agent.config.settings import check_settings, check_values, check_word
from keep_agent.errors import ConfigError, check_choice, did_you_mean
from memory.config.choices import DTYPES, QUANTIZATIONS
from memory.engine.models.load import parse_dtype
from memory.engine.models.quantized_weights import AT_LOAD
from planners.bundled import PLANNERS

VALID = [
    "planner=keep,full_recompute memory/loading=serial,next_layer eval.seed=1,2",
    "planner=cacheblend memory.recompute.ratio=0.2", "+planner=keep", "++env.limit=3", "+memory/grouping=default",
    "~memory.retrieval.recent", "hydra.run.dir=/tmp/x hydra/launcher=basic",
    "memory=sparsex memory.pinned.capacity_bytes=9",
    "memory/storage=tiers memory.storage.tiers.0.budget_bytes=9 +memory.storage.quotas.robot=0.5",
    "memory.recompute._target_=mine.Stage +memory.recompute.knob=3",
    "prompt.style=linked prompt.encoder=${oc.env:HOME}", "model=custom model.name=owner/name eval.frames=null",
    "env.data='a,b' eval.seed=range(1,4)",
]  # fmt: skip
INVALID = [
    ("alfred", "++memory.recompute.hops=2", "did you mean 'memory.recompute.max_hops'?"),
    ("alfred", "~env.limt", "did you mean 'env.limit'?"),
    ("alfred", "env.colour=red", "'env.colour'; env has id, data"),
    ("alfred", "planner=keep,kep", "unknown planner 'kep'; .*did you mean 'keep'?"),
    ("alfred", "planner=KEEP", "did you mean 'keep'?"),
    ("alfred", "memory.recompute=full", "did you mean memory/recompute=...?"),
    ("alfred", "prompt.style=plain,link", "prompt.style='link' is unknown; .*did you mean 'linked'?"),
    ("alfred", "planner=random memory.layout=append", "there is no setting 'memory.layout'"),
    ("alfred", "memory=keep_lean", "memory=keep_lean is called memory=keep_contextual now"),
    ("alfred", "planner=keep memory/recompute=multi_hop_lean", "is called memory/recompute=multi_hop_limited now"),
    ("alfred", "memory=sparsex memory.frozen.capacity_bytes=9", "memory.frozen is called memory.pinned now"),
    ("alfred", "memory=sparsex +memory.frozen=null", "memory.frozen is called memory.pinned now"),
    ("locomo", "+env=wah", "there is no setting 'env'"),
    ("phases", "max_token=3", "did you mean 'max_tokens'?"),
    ("agent", "model.dtyp=float32", "did you mean 'model.dtype'?"),
    ("latency", "latency.stepz=3", "did you mean 'latency.steps'?"),
]


@pytest.mark.parametrize("words", VALID)
def test_known_settings_and_options_are_accepted(words: str) -> None:
    check_known("alfred", words.split())


@pytest.mark.parametrize(("name", "words", "message"), INVALID, ids=[f"{name} {words}" for name, words, _ in INVALID])
def test_unknown_settings_and_options_are_refused(name: str, words: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("?", r"\?").replace("...", r"\.\.\.")):
        check_known(name, words.split())


def test_options_and_keys_of_another_folder_are_known(tmp_path: Path) -> None:
    file = tmp_path / "memory" / "mine.yaml"
    file.parent.mkdir()
    file.write_text("defaults:\n  - keep\n  - _self_\nname: mine\nmine_alone: 3\n")
    check_known("alfred", ["memory=mine", "memory.mine_alone=4"], [str(tmp_path)])
    with pytest.raises(UnknownSetting):
        check_known("alfred", ["memory=keep", "memory.mine_alone=4"], [str(tmp_path)])


@pytest.mark.parametrize("name", [*PLANNERS, "qwen2.5-0.5b", "owner/name", "Qwen/Qwen2.5-0.5B"])
def test_names_of_models_are_accepted(name: str) -> None:
    check_model(name)


@pytest.mark.parametrize("name", ["planner-tin", "custom", "/no/where", "./nowhere", "gpt2", "a/b/c", ""])
def test_impossible_names_of_models_are_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="not a configured model .* not a file or folder"):
        check_model(name)


def test_model_folders_may_exist_on_a_clusters_nodes_only(tmp_path: Path) -> None:
    name = str(tmp_path / "run")
    overrides = ["planner=keep", "model=custom", f"model.name={name}", "eval.launcher=ray"]
    check_settings(compose_settings("alfred", overrides))
    for local in (overrides[:-1], [*overrides[:-1], "eval.launcher=local"]):
        with pytest.raises(ConfigError, match="not a file or folder"):
            compose_settings("alfred", local)


def test_model_folders_need_a_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    with pytest.raises(ConfigError, match="model=run does not work: 'run' has no config.json; give a model folder"):
        check_model("run")
    (tmp_path / "run" / "config.json").write_text("{}")
    check_model("run")
    check_model(str(tmp_path / "run"))
    with pytest.raises(ConfigError, match="model=a.txt does not work: 'a.txt' is a file; give a GGUF file"):
        (tmp_path / "a.txt").write_text("")
        check_model("a.txt")


def test_encoders_are_known_names_or_folders(tmp_path: Path) -> None:
    for name in ("auto", "Hashed", "minilm", "sentence-transformers/all-MiniLM-L6-v2", str(tmp_path)):
        check_word("prompt.encoder", name)


NAMES = ["${x}", "x${oc.env:HOME}", "it's", "a,b", "\\${x}", " a ", "null", "1e3", "[1]", "\\\\${x}\\'", "{a:1}"]


@pytest.mark.parametrize("name", [*NAMES, 'a, b it\'s "${oc.env:HOME}" = \\'])
def test_folders_of_any_name_are_models(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).mkdir()
    (tmp_path / name / "config.json").write_text("{}")
    for folder in (name, str(tmp_path / name)):
        assert choose_agent("keep", folder, []).model.name == folder
    with pytest.raises(ConfigError, match="not a file or folder"):
        choose_agent("keep", f"{tmp_path / name}/x", [])


def test_words_checked_without_torch_are_those_of_torch() -> None:
    assert tuple(AT_LOAD) == QUANTIZATIONS
    assert [str(parse_dtype(name)) for name in DTYPES] == [f"torch.{name}" for name in DTYPES]


def test_a_hint_names_the_closest_word_if_any() -> None:
    assert did_you_mean("Linkd", ["plain", "linked"]) == "; did you mean 'linked'?"
    assert did_you_mean("xyz", ["plain", "linked"]) == did_you_mean("xyz", []) == ""
    with pytest.raises(ConfigError, match=r"size='bigg' is unknown; use one of big, null; did you mean 'big'\?"):
        check_choice("size", "bigg", ["big"], null=True)
    check_choice("size", None, ["big"], null=True)


def test_several_threads_may_compose_at_once() -> None:
    """Hydra has a global state, which all threads share."""
    with ThreadPoolExecutor(3) as pool:
        budgets = list(pool.map(lambda budget: compose_agent([f"prompt.budget={budget}"]).prompt.budget, range(3, 12)))
    assert budgets == list(range(3, 12))


CONFIGS = Path(__file__).resolve().parents[3] / "configs"
COMMANDS, METHODS = ([path.stem for path in CONFIGS.glob(names)] for names in ("*.yaml", "memory/*.yaml"))
ARGUMENT = "memory."  # prefix of a component's settings: its class gives the type of a setting whose default is null
WRONG = {
    "prompt.encoder=5": """give text; to give it as text, write "prompt.encoder='5'\"""",
    "prompt.encoder=[minilm]": "give text",
    "env.thor.width=big": "give a whole number",
    "env.thor.grid=true": "env.thor.grid=true does not work; give a number",
    "eval.out=null": "give text",
    "eval.ray.num_cpus=null": "give a number",
    "engine.link_microseconds=x": "give a number",
    "engine.link_gigabytes=nan": "give a number or null",
    "model.tokenizer=3": "give text or null",
    "planner.name=null": "give text",
    "memory.recompute.max_hops=1.5": "give a whole number",
    "memory.recompute.schedule.average=much": "give a number",
    "memory.recompute.relative=1": "give true or false",
    "memory.grouping.window=[1]": "give a whole number",
    "wandb.group=7": "give text or null",
    "eval.seed=1.5": "give a whole number from 0 on",
    "model.device=cuda:x": "model.device=cuda:x is not a device",
    "memory.recompute._target_=memory.recompute.full.Ful": "'memory.recompute.full.Ful' is not a component",
    "memory.loading._target_=no_such_package.Mine": "'no_such_package.Mine' is not a component",
}
RIGHT = [
    "env.thor.field_of_view=60 memory.grouping.threshold=1 engine.chunk_megabytes=2 eval.ray.num_gpus=0.5",
    "eval.frames=null eval.threads=2 eval.shard=0/2 prompt.goal=true planner.retry=null model.device=cuda:1",
    "memory/storage=disk memory.storage.budget_bytes=null memory.storage.folder=kv memory.storage.bits=4",
    "memory=memart memory.retrieval.layers=[1,2]",
    "memory/storage=tiers memory.storage.pins=[a,b] memory.storage.quotas={robot:0.5} memory.storage.ttl_seconds=9",
    "memory/recompute=none memory.recompute._target_=tests.Mine +memory.recompute.max_hops=few",
]


@pytest.mark.parametrize(
    ("name", "overrides"),
    [*((name, []) for name in COMMANDS), *(("alfred", [f"memory={name}"]) for name in METHODS)],
)
def test_the_configs_have_values_of_their_kinds(name: str, overrides: list[str]) -> None:
    check_values(compose_settings(name, overrides))


def test_every_setting_that_is_null_has_a_kind() -> None:
    null_only = {key for key, kinds in allowed_kinds().items() if kinds == {ValueKind.NULL}}
    assert not [key for key in null_only if not key.startswith(ARGUMENT)]
    texts = {path.read_text() for path in CONFIGS.rglob("*.yaml")}
    names = {key.rpartition(".")[2].removesuffix("[]") for keys in EXTRA_KINDS.values() for key in keys} - {"overrides"}
    assert all(any(f"{name}:" in text for text in texts) for name in names)


@pytest.mark.parametrize("override", WRONG)
def test_a_value_of_another_kind_is_refused(override: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        check_settings(compose_settings("alfred", ["planner=keep", override]))
    assert WRONG[override] in str(refusal.value)


@pytest.mark.parametrize("words", RIGHT)
def test_a_value_of_its_kind_or_of_a_narrower_one_is_taken(words: str) -> None:
    check_settings(compose_settings("alfred", ["planner=keep", *words.split()]))


@pytest.mark.parametrize("value", [5, None, "text", [], True])
@pytest.mark.parametrize("key", ["memory", "memory.storage", "memory.recompute.schedule", "env.thor", "eval", "model"])
def test_a_value_in_place_of_settings_is_refused(key: str, value: Any) -> None:
    with initialize_config_module("configs", version_base="1.3"):
        plain = OmegaConf.to_container(compose("alfred", ["memory=keep"]))
    *above, last = key.split(".")
    reduce(dict.__getitem__, above, plain)[last] = value
    for only in ([ValueKind.GROUP], ValueKind):
        with pytest.raises(ConfigError, match=f"^{key}=.* does not work; give settings below this key"):
            check_kinds(plain, only=only)


@pytest.mark.parametrize("words_given", ["latency.planners=5", "latency.models=[5]", "latency.churn=[alfred,x,2.5]"])
def test_elements_of_a_list_have_kinds_too(words_given: str) -> None:
    with pytest.raises(ConfigError, match="does not work; give"):
        check_values(compose_settings("latency", [words_given]))
    check_values(compose_settings("latency", ["latency.models=a", "latency.segments=8", "latency.churn=[alfred,2]"]))


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"planner": "kep"}, "did you mean"), ({"overrides": ["prompt.encoder=null"]}, "give text"),
        ({"overrides": ["prompt.style=link"]}, "did you mean"), ({"overrides": ["memory._target_=5"]}, "not a dotted"),
        ({"overrides": ["eval.threads=99999999999"]}, "too many"), ({"model": "planner-tin"}, "did you mean"),
    ],
)  # fmt: skip
def test_an_agent_with_invalid_settings_is_refused(
    monkeypatch: pytest.MonkeyPatch, choices: dict[str, Any], message: str
) -> None:
    monkeypatch.setattr(planner_factory, "load_model", lambda *values: pytest.fail("a model was loaded"))
    with pytest.raises(ConfigError, match=message):
        Agent.from_config(**choices)
    with pytest.raises(ConfigError):
        compose_agent(choices.get("overrides", [f"{name}={value}" for name, value in choices.items()]))
