"""Variants of methods: they may differ in memory and decision settings, and mistyped values load no model."""

from __future__ import annotations

from types import ModuleType

import pytest

from eval.common.variants import compose_variants, name_list
from eval.fidelity import __main__ as fidelity
from eval.retention import __main__ as retention
from keep_agent.config import planner_factory
from keep_agent.errors import ConfigError
from tests.eval.workers.runs import Command


def test_a_variant_has_its_own_overrides() -> None:
    variant = "other:keep+memory.recompute.max_hops=0+memory/loading=serial+prompt.budget=9+prompt.style=linked"
    plain, changed = compose_variants(["keep", f"{variant}+planner.policy=generate"], ["prompt.budget=5"]).values()
    assert changed.memory.recompute.max_hops == 0 and "serial" in changed.memory.loading["_target_"]
    assert (plain.prompt.budget, changed.prompt.budget) == (5, 9)
    assert (changed.prompt.style, changed.planner.policy) == ("linked", "generate")


@pytest.mark.parametrize(
    "override",
    ["model.dtype=float32", "prompt.encoder=nonsense", "prompt=lota", "env.stream=2", "eval.seed=1", "+env.a=1"],
)
def test_a_variant_cannot_override_a_common_setting(override: str) -> None:
    """The caller takes common settings from the first method alone."""
    with pytest.raises(ConfigError, match=r"method keep\+.*: methods may differ only in .*without the \+"):
        compose_variants(["full_recompute", f"keep+{override}"], [])


def test_a_caller_can_restrict_the_keys() -> None:
    with pytest.raises(ConfigError, match=r"methods may differ only in memory, not in 'prompt.style=linked'"):
        compose_variants(["keep+memory.grouping.bound=1+prompt.style=linked"], [], allowed=("memory",))


def test_a_setting_of_some_methods_is_given_behind_them() -> None:
    with pytest.raises(ConfigError, match=r"method full_recompute: .*'memory.recompute.ratio'.*NAME\+KEY=VALUE"):
        compose_variants(["cacheblend", "full_recompute"], ["memory.recompute.ratio=0.2"])


def test_a_list_has_no_empty_names() -> None:
    assert name_list("keep,epic,") == ["keep", "epic"] and name_list(",") == name_list("none") == name_list("") == []


MISTYPED = [
    (fidelity, "planner=keep+memory.recompute.direction=cusal", "'causal'"),
    (retention, "--methods x:h2o+memory.retention.grain=tokn", "'token'"),
]


@pytest.mark.parametrize(("command", "words", "meant"), MISTYPED, ids=[f"{c.__name__} {w}" for c, w, _ in MISTYPED])
def test_typing_errors_load_no_model(
    command: ModuleType, words: str, meant: str, call: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(planner_factory, "load_model", refuse)
    code, out, err = call(command.main, *words.split())
    assert (code, out, err.count("\n")) == (2, "", 1) and err.startswith("error: ")
    assert f"did you mean {meant}?" in err
