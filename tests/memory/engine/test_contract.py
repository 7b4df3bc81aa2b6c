"""Contract of every `memory.engine.base.Engine`, tested on TransformersEngine and on a dense reference engine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from keep_agent.errors import ConfigError, ModelError
from memory.construction.per_segment import PerSegment
from memory.construction.prefix import Prefix
from memory.construction.turns import Turns
from memory.engine.base import Engine, PrefillResult
from memory.engine.models.load import LoadedModel
from memory.engine.models.tiny_models import tiny_model
from memory.engine.transformers.engine import TransformersEngine
from memory.loading.layer_balanced import LayerBalanced
from memory.loading.serial import Serial
from memory.method import MemoryMethod
from memory.recompute.full import Full
from memory.recompute.multi_hop import MultiHop
from memory.recompute.none import Nothing
from memory.retrieval.all import All
from memory.retrieval.latent import Latent
from memory.segments.sentence_encoder import make_encoder
from memory.session import MemorySession
from memory.stages import Loading
from tests.laws.prompts import Prompt, relative, tokens
from tests.references.dense_engine import DenseEngine

EXACT = 1e-5  # relative tolerance: RoPE's angles are float32
PROMPT = Prompt.random((9, 12, 7), query=5, context=4)


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return tiny_model("qwen2", layers=3, dtype=torch.float64)


@pytest.fixture(scope="module", params=[TransformersEngine, DenseEngine])
def engine(request: pytest.FixtureRequest, model: LoadedModel) -> Iterator[Engine]:
    engine = request.param(model)
    yield engine
    engine.close()


def prefilled(engine: Engine, ids: list[int], keep_raw: bool = False) -> PrefillResult:
    return engine.prefill(Prompt((), tuple(ids)).layout([]), Full(), Serial(), keep_raw=keep_raw)


def plain(model: LoadedModel, ids: list[int]) -> torch.Tensor:
    """Logits (rows, vocab) of the dense reference, which the laws compare with transformers' own forward."""
    reference = DenseEngine(model)
    cache = prefilled(reference, ids[:1]).cache
    return torch.cat([cache.logits, *(reference.append(cache, [token]) for token in ids[1:])])


def test_a_fresh_prompt_is_a_plain_forward(engine: Engine, model: LoadedModel) -> None:
    ids = tokens(20, 1)
    result = prefilled(engine, ids)
    assert relative(result.logits[0], plain(model, ids)[-1]) < EXACT
    assert (result.cache.length, result.cache.next_position) == (20, 20)
    assert torch.equal(result.cache.logits, result.logits) and result.cache.reads.raw >= 20
    assert result.trace.active_rows == [20] * engine.info.layers


def test_blocks_hold_unrotated_keys_of_their_context(engine: Engine, model: LoadedModel) -> None:
    context, unit = tokens(6, 2), tokens(8, 3)
    (head,) = engine.encode([(None, context)], ["head"])
    block, _ = engine.encode([(head, unit), (None, unit)], ["a", "b"])
    assert (head.identity, block.identity, block.tokens) == ("head", "a", 8)
    assert block.k.shape == (engine.info.layers, engine.info.kv_heads, 8, engine.info.head_dim)
    (expected,) = DenseEngine(model).encode([(head, unit)])
    assert relative(block.k[:], expected.k) < EXACT and relative(block.v[:], expected.v) < EXACT
    with pytest.raises(ConfigError, match="2 units but 1 identities"):
        engine.encode([(None, unit), (None, unit)], ["a"])


@pytest.mark.parametrize("loading", [Serial, LayerBalanced])
def test_reused_blocks_are_isolated_units(engine: Engine, model: LoadedModel, loading: type) -> None:
    """Laws 2 (units see only themselves and their context) and 7 (the loading stage does not change the result)."""

    def logits(engine: Engine, loading: Loading) -> torch.Tensor:
        layout, context = PROMPT.layout(PROMPT.blocks(engine)), PROMPT.context_block(engine)
        return engine.prefill(layout, Nothing(), loading, context).logits

    assert relative(logits(engine, loading()), logits(DenseEngine(model), Serial())) < EXACT


def test_a_cache_is_extended_and_rewound(engine: Engine, model: LoadedModel) -> None:
    ids = tokens(18, 4)
    expected = plain(model, ids)
    cache = prefilled(engine, ids[:10]).cache
    before = cache.logits
    result = engine.extend(cache, ids[10:15])
    assert relative(result.logits[0], expected[14]) < EXACT and result.cache is cache and cache.length == 15
    cache.rewind(10, before)
    assert relative(engine.append(cache, ids[10:])[0], expected[-1]) < EXACT and cache.next_position == 18


def test_candidates_are_scored_behind_the_prompt(engine: Engine, model: LoadedModel) -> None:
    ids, candidates = tokens(12, 5), [tokens(1, 6), tokens(3, 7), tokens(3, 7)[:2]]
    cache, expected = prefilled(engine, ids).cache, []
    for candidate in candidates:
        logits = plain(model, [*ids, *candidate]).log_softmax(-1)
        expected.append(sum(logits[11 + i, token] for i, token in enumerate(candidate)))
    sums, counts = torch.stack(expected), torch.tensor(list(map(len, candidates)))
    assert relative(engine.score(cache, candidates).scores, sums) < EXACT
    assert relative(engine.score(cache, candidates, "mean").scores, sums / counts) < EXACT
    assert cache.length == 12, "candidates leave no rows"
    assert int(engine.score(cache, candidates, best=1).scores.argmax()) == int(sums.argmax())


def test_greedy_decoding_ends_before_a_stop_token(engine: Engine, model: LoadedModel) -> None:
    ids, expected = tokens(9, 8), []
    for _ in range(4):
        expected.append(int(plain(model, [*ids, *expected])[-1].argmax()))
    cache = prefilled(engine, ids).cache
    logits = cache.logits
    assert engine.generate(cache, logits, 4) == expected
    cache.rewind(9, logits)
    stop = expected[2]
    assert engine.generate(cache, logits, 4, [stop]) == expected[: expected.index(stop)]


def test_harvested_rows_are_blocks(engine: Engine) -> None:
    ids = tokens(10, 9)
    cache = prefilled(engine, ids, keep_raw=True).cache
    harvested, (encoded,) = engine.harvest(cache, range(10), "h"), engine.encode([(None, ids)])
    assert harvested.identity == "h" and relative(harvested.k[:], encoded.k[:]) < EXACT
    assert relative(harvested.v[:], encoded.v[:]) < EXACT
    with pytest.raises(ModelError, match="keep_raw"):
        engine.harvest(prefilled(engine, ids).cache, range(10))


def test_query_states_are_unrotated_queries(engine: Engine, model: LoadedModel) -> None:
    context, ids = engine.encode([(None, tokens(5, 10))])[0], tokens(6, 11)
    states = engine.query_states(context, ids, [0, 2])
    expected = DenseEngine(model).query_states(context, ids, [0, 2])
    assert [state.shape for state in states] == [(engine.info.heads, 6, engine.info.head_dim)] * 2
    assert all(relative(a, b) < EXACT for a, b in zip(states, expected, strict=True))


@pytest.mark.parametrize("kind", [TransformersEngine, DenseEngine])
def test_work_runs_until_the_engine_is_closed(model: LoadedModel, kind: type) -> None:
    engine = kind(model)
    assert engine.run(lambda: 7) == engine.submit(lambda: 7).result() == engine.in_background(lambda: 7).result() == 7
    engine.close()
    with pytest.raises(ModelError, match="closed"):
        engine.run(lambda: 7)


METHODS = {
    "full_recompute": MemoryMethod("full_recompute", All(), PerSegment(), Full(), Serial()),
    "full_reuse": MemoryMethod("full_reuse", All(), PerSegment(), Nothing(), LayerBalanced()),
    "prefix": MemoryMethod("prefix", All(), Prefix(block_size=4), Nothing(), Serial()),
    "latent": MemoryMethod("latent", Latent(top_k=3), PerSegment(), Nothing(), Serial()),
}


def prompts(engine: Engine, method: MemoryMethod) -> list[torch.Tensor]:
    """Return the logits of three prompts of one session."""
    session = MemorySession(engine, method, make_encoder("hashed"), lambda text: list(text.encode()), 40, tokens(3, 12))
    logits = []
    for step in range(3):
        session.store.put(f"mug_{step}", "object", f"mug mug_{step} sink\n")
        session.store.put("agent", "agent", f"agent at sink_{step}\n")
        logits.append(session.prefill("a mug", [*b"next "]).logits[0])
        session.advance()
    return logits


@pytest.mark.parametrize("name", METHODS)
def test_sessions_run_on_any_engine(engine: Engine, model: LoadedModel, name: str) -> None:
    expected = prompts(DenseEngine(model), METHODS[name])
    for logits, reference in zip(prompts(engine, METHODS[name]), expected, strict=True):
        assert relative(logits, reference) < EXACT


@pytest.mark.parametrize(
    ("method", "ability"),
    [
        (MemoryMethod("keep", All(), PerSegment(), MultiHop(), Serial()), "selective_recompute"),
        (MemoryMethod("turns", All(), Turns(), Nothing(), Serial(), layout="append"), "session_caches"),
    ],
)
def test_a_method_that_needs_more_is_refused(model: LoadedModel, method: MemoryMethod, ability: str) -> None:
    with pytest.raises(ConfigError, match=f"memory method '{method.name}' needs an engine with {ability}"):
        MemorySession(DenseEngine(model), method, make_encoder("hashed"), lambda text: list(text.encode()))
