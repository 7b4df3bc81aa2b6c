"""Methods of one comparison differ in what they remember and how they decide, and in nothing that they share."""

from __future__ import annotations

import pytest

from eval.common.variants import compose_variants, names
from keep_agent.errors import ConfigError


def test_a_variant_has_overrides_of_its_own() -> None:
    own = (
        "memory.recompute.max_hops=0+memory/loading=serial+prompt.budget=9+prompt.style=linked+planner.policy=generate"
    )
    plain, other = compose_variants(["keep", f"other:keep+{own}"], ["prompt.budget=5"]).values()
    assert other.memory.recompute.max_hops == 0 and "serial" in other.memory.loading["_target_"]
    assert (plain.prompt.budget, other.prompt.budget) == (5, 9)
    assert (other.prompt.style, other.planner.policy) == ("linked", "generate")


@pytest.mark.parametrize(
    "override",
    ["model.dtype=float32", "prompt.encoder=nonsense", "prompt=lota", "env.stream=2", "eval.seed=1", "+env.a=1"],
)
def test_what_all_methods_share_is_no_variants_own(override: str) -> None:
    """It would be taken from the first of them, whatever the others say."""
    with pytest.raises(ConfigError, match=r"method keep\+.* is not a method's own.*without the \+"):
        compose_variants(["full_recompute", f"keep+{override}"], [])


def test_what_the_caller_does_not_read_is_refused_too() -> None:
    with pytest.raises(ConfigError, match=r"'prompt.style=linked' is not a method's own, as memory are"):
        compose_variants(["keep+memory.grouping.bound=1+prompt.style=linked"], [], own=("memory",))


def test_what_only_some_methods_have_stands_behind_them() -> None:
    with pytest.raises(ConfigError, match=r"method full_recompute: .*'memory.recompute.ratio'.*NAME\+KEY=VALUE"):
        compose_variants(["cacheblend", "full_recompute"], ["memory.recompute.ratio=0.2"])


def test_a_list_has_no_empty_names() -> None:
    assert names("keep,epic,") == ["keep", "epic"] and names(",") == names("none") == names("") == []
