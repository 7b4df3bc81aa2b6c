"""Shape and folder of planner-tiny. The module does not import torch, so that mistyped options fail fast."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from keep_agent.errors import ConfigError
from memory.files.atomic import lock_folder
from memory.files.folder_versions import latest
from planners.tiny.tokenizer import BOS, PAD

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import Qwen2Config


HISTORY = "training.json"  # training record of a planner
VOCAB = 4096  # maximum number of tokens in a new tokenizer
SEEDED_HEADS, MIN_HEAD_WIDTH = 3, 4  # heads that `planners.training.induction_init` sets; minimum width of a head

CONFIG_KEYS = (  # names in Qwen2Config, in the order of the fields of `Shape`
    "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "max_position_embeddings",
)  # fmt: skip


def is_planner(folder: Path) -> bool:
    """Return whether the folder, or its latest version, holds a trained planner."""
    return (latest(folder) / HISTORY).is_file()


def lock(folder: Path) -> AbstractContextManager[None]:
    """Lock a planner's folder for its trainer. Raises ConfigError while another process holds the lock."""
    return lock_folder(folder)


@dataclass(frozen=True, slots=True)
class Shape:
    """Shape of a model. By default it has many thin layers, since KEEP saves work in all but the first three."""

    hidden: int = 192
    layers: int = 12
    heads: int = 6
    intermediate: int = 512
    positions: int = 4096

    def check(self) -> None:
        """Raises ConfigError if `planners.training.induction_init` does not support the number or width of heads."""
        size, rest = divmod(self.hidden, self.heads)
        if self.heads < SEEDED_HEADS or rest or size % 2 or size < MIN_HEAD_WIDTH:
            raise ConfigError(
                f"--hidden {self.hidden} --heads {self.heads} make no model; give {SEEDED_HEADS} heads or more, and as "
                f"--hidden the number of heads times an even number that is {MIN_HEAD_WIDTH} or more"
            )

    @classmethod
    def of(cls, config: Qwen2Config) -> Shape:
        """Return the shape of an existing model."""
        return cls(*(getattr(config, key) for key in CONFIG_KEYS))

    def config(self, tokenizer: Tokenizer) -> Qwen2Config:
        """Return the configuration of a new model with ``tokenizer``."""
        from transformers import Qwen2Config  # lazy: a command line needs only the defaults

        vocab = -(-tokenizer.get_vocab_size() // 64) * 64
        return Qwen2Config(
            vocab_size=vocab,
            num_key_value_heads=self.heads,
            tie_word_embeddings=True,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
            bos_token_id=tokenizer.token_to_id(BOS),
            eos_token_id=None,
            pad_token_id=tokenizer.token_to_id(PAD),
            **dict(zip(CONFIG_KEYS, astuple(self), strict=True)),
        )
