"""Kinds of settings: values have the kind that ``configs`` have under their key, from any source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

from keep_agent.agent.agent import Agent
from keep_agent.config import planner_factory as brain
from keep_agent.config.compose import compose_agent, compose_settings
from keep_agent.config.setting_types import UNSET, Kind, check_kinds, kind_of, kinds
from keep_agent.config.settings import check_settings, check_values
from keep_agent.errors import ConfigError
from keep_agent.scenarios.command import composed

CONFIGS = Path(__file__).resolve().parents[3] / "configs"
COMMANDS = [path.stem for path in CONFIGS.glob("*.yaml")]
ARGUMENT = "memory."  # of a component: its class says what it takes where the default is null
WRONG = {
    "prompt.encoder=null": "prompt.encoder=null does not work; give text",
    "prompt.encoder=5": """give text; as text it is "prompt.encoder='5'\"""",
    "prompt.encoder=": "prompt.encoder= does not work; give text",
    "prompt.encoder=[minilm]": "give text",
    "env.data=5": "env.data=5 does not work; give text or null",
    "env.thor.width=big": "give a whole number",
    "env.thor.grid=true": "env.thor.grid=true does not work; give a number",
    "eval.out=null": "give text",
    "eval.resume=true": "eval.resume=true does not work; give text or null",
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
    "eval.threads=99999999999": "eval.threads=99999999999 is too many; give 4096 at most",
    "eval.seed=1.5": "give a whole number from 0 on",
    "model.device=nope": "model.device=nope is no device; give auto, cpu or cuda",
    "model.device=cuda:x": "model.device=cuda:x is no device",
    "memory._target_=5": "memory._target_=5 is no dotted name of a class",
    "memory.recompute._target_=os.system": "'os.system' is no component",
    "memory.recompute._target_=memory.recompute.full.Ful": "'memory.recompute.full.Ful' is no component",
    "memory.loading._target_=no_such_package.Mine": "'no_such_package.Mine' is no component",
}
RIGHT = [
    "env.thor.field_of_view=60 memory.grouping.threshold=1 engine.chunk_megabytes=2 eval.ray.num_gpus=0.5",
    "eval.frames=null eval.threads=2 eval.shard=0/2 prompt.goal=true planner.retry=null model.device=cuda:1",
    "memory/storage=disk memory.storage.budget_bytes=null memory.storage.folder=kv memory.storage.bits=4",
    "memory=memart memory.retrieval.layers=[1,2]",
    "memory/storage=tiers memory.storage.pins=[a,b] memory.storage.quotas={robot:0.5} memory.storage.ttl_seconds=9",
    "memory/recompute=none memory.recompute._target_=tests.Mine +memory.recompute.max_hops=few",
]


@pytest.mark.parametrize("name", COMMANDS)
def test_what_configs_say_is_of_their_kinds(name: str) -> None:
    check_values(compose_settings(name, []))


@pytest.mark.parametrize("method", [path.stem for path in CONFIGS.glob("memory/*.yaml")])
def test_every_method_is_of_their_kinds(method: str) -> None:
    with initialize_config_module("configs", version_base="1.3"):
        check_values(compose("alfred", [f"memory={method}"]))


def test_every_setting_that_is_null_has_a_kind() -> None:
    assert not [key for key, those in kinds().items() if those == {Kind.NULL} and not key.startswith(ARGUMENT)]
    texts = {path.read_text() for path in CONFIGS.rglob("*.yaml")}
    names = {key.rpartition(".")[2].removesuffix("[]") for keys in UNSET.values() for key in keys} - {"overrides"}
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
def test_where_there_are_settings_no_value_is(key: str, value: Any) -> None:
    with initialize_config_module("configs", version_base="1.3"):
        plain = OmegaConf.to_container(compose("alfred", ["memory=keep"]))
    inner: Any = plain
    *above, last = key.split(".")
    for part in above:
        inner = inner[part]
    inner[last] = value
    for only in ([Kind.GROUP], Kind):
        with pytest.raises(ConfigError, match=f"^{key}=.* does not work; give settings of its own"):
            check_kinds(plain, only=only)


@pytest.mark.parametrize("words_given", ["latency.planners=5", "latency.models=[5]", "latency.churn=[alfred,x,2.5]"])
def test_elements_of_a_list_have_kinds_too(words_given: str) -> None:
    with pytest.raises(ConfigError, match="does not work; give"):
        check_values(compose_settings("latency", [words_given]))
    check_values(compose_settings("latency", ["latency.models=a", "latency.segments=8", "latency.churn=[alfred,2]"]))


def test_agents_servers_and_scenarios_are_checked_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*words_given: object) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(brain, "load_model", refuse)
    for override in ("prompt.encoder=null", "eval.threads=99999999999", "memory._target_=5"):
        with pytest.raises(ConfigError):
            Agent.from_config(overrides=[override])
        with pytest.raises(ConfigError):
            compose_agent([override])
    with pytest.raises(ConfigError, match="model.tokenizer=5 does not work"):
        composed(["model.tokenizer=5"])


def test_kinds_of_values() -> None:
    values = [None, "", " ", "a", True, 1, 1.0, float("inf"), [1], {}]
    names = ["NULL", "EMPTY", "EMPTY", "TEXT", "SWITCH", "WHOLE", "NUMBER", "UNKNOWN", "LIST", "GROUP"]
    assert [kind_of(value).name for value in values] == names
