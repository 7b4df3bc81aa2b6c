from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import Qwen2ForCausalLM

from keep_agent.errors import ConfigError
from planners.bundled import BUNDLED
from planners.prompts.styles import FactRecord
from planners.tiny.checkpoint import load_planner
from planners.tiny.growth import add_embeddings
from planners.tiny.tokenizer import MIN_COUNT, extend_tokenizer
from planners.train import parser
from planners.training.rollout_files import Rollout, write_rollouts
from planners.training.trainer import Trainer
from tests.planners.training.test_train import SMALL

Make = Callable[..., Rollout]
TEXTS = ["task lota put the zyzzogeton on a countertop\n", "zyzzogeton zyzzogeton_1 countertop_2 closed\n"] * MIN_COUNT
NAMES = ["zyzzogeton_1", "zyzzogeton_2", "zyzzogeton_12", "mug_2"]
OLD = "task grounded put a mug on the countertop\nmug mug_2 countertop_1 hot\nnext go to countertop_1\n"


def ids(text: str, tokenizer) -> list[int]:
    return tokenizer.encode(text).ids


def test_new_words_and_names_are_single_tokens_and_old_texts_keep_their_ids() -> None:
    _, tokenizer, _ = load_planner(BUNDLED)
    before, size = ids(OLD, tokenizer), tokenizer.get_vocab_size()
    assert extend_tokenizer(tokenizer, TEXTS[: MIN_COUNT // 2], ()) == {}, "a rare word stays in pieces"
    new = extend_tokenizer(tokenizer, TEXTS, NAMES)
    assert set(new) == {"zyzzogeton", "zyzzogeton_1", "zyzzogeton_2", "zyzzogeton_12"}
    assert all(len(pieces) > 1 and max(pieces) < size for pieces in new.values())
    assert ids(OLD, tokenizer) == before
    for name in new:
        assert len(ids(f"{name}\n", tokenizer)) == 2
    assert ids("zyzzogeton_1 zyzzogeton_12 zyzzogeton", tokenizer) == [
        tokenizer.token_to_id(name) for name in ("zyzzogeton_1", "zyzzogeton_12", "zyzzogeton")
    ]
    assert extend_tokenizer(tokenizer, TEXTS, NAMES) == {}


@torch.no_grad()
def test_a_widened_model_keeps_its_logits() -> None:
    model, tokenizer, _ = load_planner(BUNDLED)
    plain = Qwen2ForCausalLM._from_config(model.config, attn_implementation="eager", dtype=torch.float32).eval()
    plain.load_state_dict(model.state_dict())
    prompt = torch.tensor([ids(OLD, tokenizer)])
    before = plain(prompt).logits
    rows = before.shape[-1]
    names = [f"zyzzogeton_{number}" for number in range(1, 1 + rows)]  # more names than free rows
    new = extend_tokenizer(tokenizer, TEXTS, names)
    add_embeddings(plain, tokenizer, new)
    after = plain(prompt).logits
    old = min(map(tokenizer.token_to_id, new))
    assert torch.equal(after[..., :old], before[..., :old])
    weight = plain.get_input_embeddings().weight
    assert plain.lm_head.weight is weight and len(weight) == plain.config.vocab_size >= tokenizer.get_vocab_size()
    fresh = weight[[tokenizer.token_to_id(name) for name in names[:50]]]
    alike = torch.nn.functional.cosine_similarity(fresh[:, None], fresh[None], dim=-1) - torch.eye(50)
    assert alike.max() < 0.9
    assert fresh.norm(dim=-1).mean() == pytest.approx(weight[:1000].norm(dim=-1).mean().item(), rel=0.5)


def test_a_new_run_extends_its_planner_and_a_resumed_one_does_not(tmp_path: Path, make_rollout: Make) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder, rollout in ((first, make_rollout), (second, lambda seed: elsewhere(make_rollout(seed)))):
        folder.mkdir()
        write_rollouts(folder / "a.jsonl.gz", (rollout(seed) for seed in range(300)))

    def trainer(data: Path, out: str, *more: str) -> Trainer:
        options = ["--data", str(data), "--out", str(tmp_path / out), "--minutes", "1", "--steps", "1", *SMALL, *more]
        return Trainer(parser().parse_args(options))

    old = trainer(first, "old")
    old.run()
    assert old.start.tokenizer.token_to_id("zyzzogeton_1") is None
    new = trainer(second, "new", "--init", str(tmp_path / "old"))
    assert new.start.tokenizer.token_to_id("zyzzogeton_1") is not None
    new.run()
    for more in ((), ("--init", str(tmp_path / "old"))):  # the same command resumes, too
        again = trainer(first, "new", *more)
        assert again.start.tokenizer.get_vocab_size() == new.start.tokenizer.get_vocab_size()
        assert again.progress.step == new.progress.step
        again.close()
    (tmp_path / "old").rename(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="did not start from the weights that .* holds now; leave --init out"):
        trainer(first, "new", "--init", str(tmp_path / "old"))


def elsewhere(rollout: Rollout) -> Rollout:
    thing = FactRecord("zyzzogeton_1", "receptacle", "zyzzogeton", states=("closed",))
    first, *rest = rollout.tasks
    return replace(rollout, tasks=(replace(first, facts=(*first.facts, thing)), *rest))
