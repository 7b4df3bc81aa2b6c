"""Scoring: a trie in one forward equals one forward per candidate; greedy decoding behind a prompt."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from keep_agent.errors import ConfigError
from memory.engine.base import Engine, PrefillResult
from memory.engine.transformers.score import NEW_NODES, build_trie
from memory.loading.serial import Serial
from memory.recompute.none import Nothing
from tests.laws.prompts import Prompt, relative, tokens

PROMPT = Prompt.random()


def prefilled(engine: Engine) -> PrefillResult:
    return engine.prefill(PROMPT.layout([None] * 4), Nothing(), Serial())


def plain(engine: Engine, ids: list[int]) -> torch.Tensor:
    """Logits of transformers' forward of the prompt and ``ids``, from the prompt's last row on."""
    return engine.forward_plain(torch.cat([PROMPT.ids, torch.tensor(ids, dtype=torch.long)]))[PROMPT.ids.numel() - 1 :]


def one_by_one(engine: Engine, candidate: list[int]) -> torch.Tensor:
    return plain(engine, candidate)[:-1].log_softmax(-1).gather(1, torch.tensor(candidate)[:, None]).sum()


def candidates() -> list[list[int]]:
    """Candidates: shared prefixes, prefixes of other candidates, single tokens, one longer than the sliding window."""
    base = [tokens(5, i) for i in range(6)]
    inside = [base[0][:2], base[0][:1], base[1][:4]]
    return [*base, *inside, *(b[:3] + tokens(3, 30 + i) for i, b in enumerate(base)), [7], tokens(40, 50)]


def test_scores_equal_one_forward_per_candidate(any_engine: Engine) -> None:
    result, many = prefilled(any_engine), candidates()
    expected = torch.stack([one_by_one(any_engine, c) for c in many])
    scored = any_engine.score(result.cache, many)
    assert relative(scored.scores, expected) < 1e-5
    lengths = torch.tensor([len(c) for c in many])
    assert relative(any_engine.score(result.cache, many, "mean").scores, expected / lengths) < 1e-5
    inner = {tuple(c[:end]) for c in many for end in range(1, len(c))}
    assert scored.computed_tokens == len(inner)


@pytest.mark.parametrize("together", [1, 7, 12, 50])
def test_sets_that_take_several_forwards_are_scored_alike(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    result, many = prefilled(engine), candidates()
    whole = engine.score(result.cache, many, "mean")
    monkeypatch.setattr("memory.engine.transformers.score.TRIE_SIZE", together)
    parts = engine.score(result.cache, many, "mean")
    assert relative(parts.scores, whole.scores) < 1e-5
    assert parts.computed_tokens >= whole.computed_tokens


@pytest.mark.parametrize("ahead", [pytest.param(1, marks=pytest.mark.slow), 3, 8])
@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_the_best_candidates_equal_those_of_a_full_search(
    any_engine: Engine, monkeypatch: pytest.MonkeyPatch, ahead: int, reduce: str
) -> None:
    monkeypatch.setattr("memory.engine.transformers.score.SEARCH_NODES", 0)
    monkeypatch.setattr("memory.engine.transformers.score.NEW_NODES", ahead)
    result, many = prefilled(any_engine), candidates()
    every = any_engine.score(result.cache, many, reduce).scores
    order = every.argsort(descending=True)
    for best in (1, 2, 5, len(many), 99):
        actual = any_engine.score(result.cache, many, reduce, best).scores
        assert torch.equal(actual.argsort(descending=True, stable=True)[:best], order[:best])
        certain = actual.isfinite()
        assert relative(actual[certain], every[certain]) < 1e-5
        assert not (~certain).any() or every[~certain].max() <= every[order[:best]].min()
    assert result.cache.length == PROMPT.ids.numel()


def test_the_search_skips_candidates_that_cannot_be_best(engine: Engine) -> None:
    result = prefilled(engine)
    message = engine.generate(result.cache, result.logits, 4)
    sure = result.logits.index_fill(1, torch.tensor(message[:1]), 50.0)
    result.cache.rewind(PROMPT.ids.numel(), sure)
    peers = [[first, *tokens(3, first)] for first in range(60) if first != message[0]]
    best = engine.score(result.cache, [*peers, message], best=1)
    assert int(best.scores.argmax()) == len(peers)
    assert best.computed_tokens == NEW_NODES and best.scores.isfinite().sum() == NEW_NODES // 3
    with pytest.raises(ConfigError, match="best=0"):
        engine.score(result.cache, [message], best=0)


def test_scoring_leaves_the_cache_as_it_was(any_engine: Engine) -> None:
    result, many = prefilled(any_engine), candidates()
    first = any_engine.score(result.cache, many).scores
    again = any_engine.score(result.cache, many[:4]).scores
    assert result.cache.length == PROMPT.ids.numel()
    torch.testing.assert_close(again, first[:4], rtol=1e-5, atol=1e-5)
    assert any_engine.generate(result.cache, result.logits, 5) == greedy(any_engine, 5)


def greedy(engine: Engine, count: int) -> list[int]:
    ids: list[int] = []
    for _ in range(count):
        ids.append(int(plain(engine, ids)[-1].argmax()))
    return ids


def test_generation_past_the_cache_and_its_headroom(any_engine: Engine) -> None:
    result = prefilled(any_engine)
    message = any_engine.generate(result.cache, result.logits, 300)
    assert len(message) == 300 and result.cache.length == PROMPT.ids.numel() + 300
    assert relative(result.cache.logits[0], plain(any_engine, message)[-1]) < 1e-5


def test_appended_tokens_are_scored_behind(engine: Engine) -> None:
    result, extra = prefilled(engine), tokens(7, 60)
    logits, expected = engine.append(result.cache, extra)[0], plain(engine, extra)[-1]
    assert relative(logits, expected) < 1e-5
    scores = engine.score(result.cache, [[3], [4, 5]]).scores
    assert relative(scores[0], expected.log_softmax(-1)[3]) < 1e-5


def test_more_nodes_than_headroom(engine: Engine) -> None:
    result, many = prefilled(engine), [tokens(4, i) for i in range(150)]
    scored = engine.score(result.cache, many)
    assert scored.computed_tokens > 256
    assert relative(scored.scores[[0, 149]], torch.stack([one_by_one(engine, many[i]) for i in (0, 149)])) < 1e-5


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), min_size=1, max_size=20))
@settings(max_examples=100)
def test_trie(many: list[list[int]]) -> None:
    plan = build_trie(tuple(map(tuple, many)), torch.float32, torch.device("cpu"))
    paths = [tuple(plan.tokens[row == 0].tolist()) for row in plan.ancestry]
    assert len(set(paths)) == len(paths) == len({tuple(c[:e]) for c in many for e in range(1, len(c))})
    spelled: list[list[int]] = [[] for _ in many]
    for parent, token, owner in zip(plan.parent.tolist(), plan.token.tolist(), plan.candidate.tolist(), strict=True):
        assert (() if parent == 0 else paths[parent - 1]) == tuple(spelled[owner])
        spelled[owner].append(token)
    assert spelled == many


def test_refusals(engine: Engine) -> None:
    result = prefilled(engine)
    for many, match in (([], "at least one candidate"), ([[1], []], "at least one token")):
        with pytest.raises(ConfigError, match=match):
            engine.score(result.cache, many)
    with pytest.raises(ConfigError, match="one of sum, mean"):
        engine.score(result.cache, [[1]], "max")
    with pytest.raises(ConfigError, match="max_new_tokens=0"):
        engine.generate(result.cache, result.logits, 0)


def test_plans_of_many_sets_take_no_more_than_their_share(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans of single tokens, which need no mask, count too."""
    monkeypatch.setattr("memory.engine.transformers.score.PLAN_BYTES", 20_000)
    result = prefilled(engine)
    for first in range(40):
        engine.score(result.cache, [[first + item] for item in range(50)])
    assert 1 < len(engine._scorer._plans) < 20
