"""Overrides are compared with the configs: what they have is taken, anything else is refused with what was meant."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from keep_agent.agent.agent import Agent
from keep_agent.config import planner_factory as brain
from keep_agent.config.compose import choose_agent, compose_agent, compose_settings
from keep_agent.config.known_settings import UnknownSetting, check_known
from keep_agent.config.model_names import check_model
from keep_agent.config.settings import check_settings, check_word
from keep_agent.errors import ConfigError, check_choice, did_you_mean
from memory.config.choices import DTYPES, QUANTIZATIONS
from memory.engine.models.load import parse_dtype
from memory.engine.models.quantized_weights import AT_LOAD
from planners.tiny.checkpoint import PLANNERS

TAKEN = [
    "planner=keep,full_recompute memory/loading=serial,next_layer eval.seed=1,2",
    "planner=cacheblend memory.recompute.ratio=0.2",
    "+planner=keep",
    "++env.limit=3",
    "+memory/grouping=default",
    "~memory.retrieval.recent",
    "hydra.run.dir=/tmp/x hydra/launcher=basic",
    "memory=sparsex memory.pinned.capacity_bytes=9",
    "memory/storage=tiers memory.storage.tiers.0.budget_bytes=9 +memory.storage.quotas.robot=0.5",
    "memory.recompute._target_=mine.Stage +memory.recompute.knob=3",
    "prompt.style=linked prompt.encoder=${oc.env:HOME}",
    "model=custom model.name=owner/name eval.frames=null",
    "env.data='a,b' eval.seed=range(1,4)",
]
REFUSED = [
    ("alfred", "planer=keep", "there is no setting 'planer'; did you mean 'planner'?"),
    ("alfred", "+planer=keep", "'planer'; did you mean 'planner'?"),
    ("alfred", "++memory.recompute.hops=2", "did you mean 'memory.recompute.max_hops'?"),
    ("alfred", "~env.limt", "did you mean 'env.limit'?"),
    ("alfred", "memory.style=linked", "did you mean 'prompt.style'?"),
    ("alfred", "env.colour=red", "'env.colour'; env has id, data"),
    ("alfred", "planner=keep,kep", "unknown planner 'kep'; .*did you mean 'keep'?"),
    ("alfred", "planner=KEEP", "did you mean 'keep'?"),
    ("alfred", "memory/recompute=mult_hop", "did you mean 'multi_hop'?"),
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


@pytest.mark.parametrize("words", TAKEN)
def test_what_the_configs_have_is_taken(words: str) -> None:
    check_known("alfred", words.split())


@pytest.mark.parametrize(("name", "words", "said"), REFUSED, ids=[f"{name} {words}" for name, words, _ in REFUSED])
def test_what_they_do_not_have_is_refused(name: str, words: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said.replace("?", r"\?").replace("...", r"\.\.\.")):
        check_known(name, words.split())


def test_options_and_keys_of_another_folder_are_known(tmp_path: Path) -> None:
    file = tmp_path / "memory" / "mine.yaml"
    file.parent.mkdir()
    file.write_text("defaults:\n  - keep\n  - _self_\nname: mine\nmine_alone: 3\n")
    check_known("alfred", ["memory=mine", "memory.mine_alone=4"], [str(tmp_path)])
    with pytest.raises(UnknownSetting):
        check_known("alfred", ["memory=keep", "memory.mine_alone=4"], [str(tmp_path)])


@pytest.mark.parametrize("name", ["planner-tiny", "qwen2.5-0.5b", "owner/name", "Qwen/Qwen2.5-0.5B"])
def test_names_that_models_can_have(name: str) -> None:
    check_model(name)


@pytest.mark.parametrize("name", ["planner-tin", "custom", "/no/where", "./nowhere", "gpt2", "a/b/c", ""])
def test_names_that_no_model_has(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="no configured model .* no file or folder"):
        check_model(name)


def test_the_nodes_of_a_cluster_may_have_what_is_not_here(tmp_path: Path) -> None:
    name = str(tmp_path / "run")
    there = ["planner=keep", "model=custom", f"model.name={name}", "eval.launcher=ray"]
    check_settings(compose_settings("alfred", there))
    for here in (there[:-1], [*there[:-1], "eval.launcher=local"]):
        with pytest.raises(ConfigError, match="no file or folder"):
            compose_settings("alfred", here)


def test_files_and_folders_that_exist_are_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    with pytest.raises(ConfigError, match="model=run does not work: 'run' has no config.json; give a model folder"):
        check_model("run")
    (tmp_path / "run" / "config.json").write_text("{}")
    check_model("run")
    check_model(str(tmp_path / "run"))
    with pytest.raises(ConfigError, match="model=a.txt does not work: 'a.txt' is a file, and models are loaded from"):
        (tmp_path / "a.txt").write_text("")
        check_model("a.txt")


def test_encoders_are_named_or_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("auto", "Hashed", "minilm", "sentence-transformers/all-MiniLM-L6-v2", str(tmp_path)):
        check_word("prompt.encoder", name)
    with pytest.raises(ConfigError, match=r"prompt.encoder=hasht is none of auto, .*; did you mean 'hashed'"):
        compose_settings("alfred", ["prompt.encoder=hasht"])


@pytest.mark.parametrize("name", ["${x}", "x${oc.env:HOME}", "it's", "a,b", "\\${x}", " a "])
def test_folders_of_any_name_are_models(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "config.json").write_text("{}")
    folder = str(tmp_path / name)
    assert choose_agent("keep", folder, []).model.name == folder
    with pytest.raises(ConfigError, match="no file or folder"):
        choose_agent("keep", f"{folder}/x", [])


def test_every_model_of_the_package_is_configured() -> None:
    for name in PLANNERS:
        check_model(name)


def test_an_agent_of_a_mistyped_setting_loads_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: object) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(brain, "load_model", refuse)
    for given in ({"planner": "kep"}, {"model": "planner-tin"}, {"overrides": ["prompt.style=link"]}):
        with pytest.raises(ConfigError, match="did you mean"):
            Agent.from_config(**given)


def test_words_that_are_checked_early_are_those_that_work() -> None:
    assert tuple(AT_LOAD) == QUANTIZATIONS
    assert [str(parse_dtype(name)) for name in DTYPES] == [f"torch.{name}" for name in DTYPES]


def test_the_closest_word_is_named_and_none_where_none_is_close() -> None:
    assert did_you_mean("Linkd", ["plain", "linked"]) == "; did you mean 'linked'?"
    assert did_you_mean("xyz", ["plain", "linked"]) == did_you_mean("xyz", []) == ""
    with pytest.raises(ConfigError, match=r"size='bigg' is unknown; use one of big, null; did you mean 'big'\?"):
        check_choice("size", "bigg", ["big"], null=True)
    check_choice("size", None, ["big"], null=True)


def test_several_threads_may_compose_at_once() -> None:
    """Hydra has one state for all of them."""
    with ThreadPoolExecutor(3) as pool:
        budgets = list(pool.map(lambda budget: compose_agent([f"prompt.budget={budget}"]).prompt.budget, range(3, 12)))
    assert budgets == list(range(3, 12))
