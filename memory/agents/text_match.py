"""Matches of a cache with a new prompt, found in the text and not in its tokens (Semantic, section 3.3).

The same characters can be tokenised in several ways: what stands around them decides what merges. So the ids of a
prompt that was tokenised anew may differ long before its text does. Here texts are compared, then mapped to tokens.
"""

from __future__ import annotations

import hashlib
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, get_args

import numpy as np
from tokenizers import Tokenizer

from keep_agent.errors import ConfigError, DataError, ModelError, check_choice

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from transformers import PreTrainedTokenizerBase

Kind = Literal["exact", "extend", "diverge", "miss"]
Exact = Literal["reuse", "recompute"]
Seams = Literal["any", "composed", "spaces"]  # where tokens of two pieces of text may meet

BROKEN = "\ufffd"  # what decoders show for bytes that are no character, or none yet
SPACES = " \t\n"
WINDOW = 16  # characters on each side of a seam that may compose
LONGEST = 8  # tokens without a whole character among them; the longest character has four bytes
ANCHORS = ("", "\n", "0", ";", "q")  # in front of a text, until one merges with nothing
PROBES = (
    ("go to fri", "dge_1"), ("go to", " fridge_1"), ("go to ", "fridge_1"), ("a", "  b"), ("a ", " b"), ("a  ", "b"),
    ("a\n", "b"), ("a", "\nb"), ("a\n", "\n\nb"), ("a\n", "  b"), ("a", " \n b"), ("a", "."), ("1", "23"), ("x", "🙂"),
    ("cafe", "\u0301 b"),
)  # fmt: skip


class Coded(NamedTuple):
    """Tokens of a text and, for each, how many characters are complete after it.

    A token that ends inside a character completes none: its number is that of the token before it.
    """

    ids: list[int]
    ends: list[int]


class Coder(Protocol):
    """What is needed of a tokenizer; ``key`` names it: another one's tokens mean something else."""

    key: str
    seams: Seams

    def encode(self, text: str, first: bool = False) -> Coded:
        """Tokens of text behind other text, or of the ``first`` in a prompt; no special tokens are added."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """What tokens behind other text say."""
        ...


class TokenizerCoder:
    """Encodes a text as the continuation of another one.

    Many tokenizers put a space in front of what they encode and take it away when they decode (SentencePiece). So a
    continuation is encoded behind an anchor, which is cut off. At a seam, tokens of two pieces decode to what tokens of
    the joined text decode to; this is tried when the coder is made. ``seams``: ``any`` place; ``composed``, not between
    characters that become one (NFC); ``spaces``, beside a space or newline only (for want of tokens for spaces).
    Raises ModelError for a tokenizer that cannot be spliced, DataError for text that is no Unicode.
    """

    def __init__(self, tokenizer: Tokenizer | PreTrainedTokenizerBase) -> None:
        self._tokenizer = _bare(tokenizer)
        self.key = hashlib.sha256(self._tokenizer.to_str().encode()).hexdigest()
        self.seams, self._anchors = self._choose()
        self._lead = self.encode("q", first=True).ids

    def encode(self, text: str, first: bool = False) -> Coded:
        for anchor in ("",) if first else self._anchors:
            coded = self._behind(anchor, text)
            if coded is not None:
                return coded
        raise ModelError(f"the tokenizer merges {text[:8]!r} with whatever is before it; let the piece begin elsewhere")

    def decode(self, ids: Sequence[int]) -> str:
        return self._say([*self._lead, *ids])[len(self._say(self._lead)) :]

    def _behind(self, anchor: str, text: str) -> Coded | None:
        """``text`` without the anchor it was encoded behind, or None if a token covers some of both."""
        try:
            encoding = self._tokenizer.encode(anchor + text, add_special_tokens=False)
        except TypeError as error:  # so tokenizers calls half of a surrogate pair
            raise DataError(f"{text[:40]!r}... is no valid Unicode; replace lone surrogates") from error
        offsets = np.array(encoding.offsets, np.int64).reshape(-1, 2) - len(anchor)
        cut = int((offsets[:, 0] < 0).sum())
        if (offsets[:cut, 1] > 0).any():
            return None
        return Coded(encoding.ids[cut:], _ends(offsets[cut:], len(text)))

    def _say(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)

    def _choose(self) -> tuple[Seams, tuple[str, ...]]:
        """The least strict seams that hold on all probes, and the anchors with which they do."""
        for seams in get_args(Seams):
            probes = [(left, right) for left, right in PROBES if is_seam(left + right, len(left), seams)]
            anchors = tuple(a for a in ANCHORS if all(self._joins(a, *probe) is not False for probe in probes))
            if all(any(self._joins(anchor, *probe) for anchor in anchors) for probe in probes):
                return seams, anchors
        raise ModelError(
            "the tokenizer cannot continue a text: separately encoded pieces decode to something else than the whole; "
            "compare tokens instead, or use another model"
        )

    def _joins(self, anchor: str, left: str, right: str) -> bool | None:
        """Do both pieces say what the whole says? None if the anchor merges with ``right``."""
        coded = self._behind(anchor, right)
        if coded is None:
            return None
        whole = self.encode(left + right, first=True).ids
        return self._say([*self.encode(left, first=True).ids, *coded.ids]) == self._say(whole)


def _bare(tokenizer: Tokenizer | PreTrainedTokenizerBase) -> Tokenizer:
    """A copy that neither cuts nor pads, and whose offsets were not trimmed: a token's spaces belong to it."""
    inner = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if not isinstance(inner, Tokenizer):
        raise ModelError(f"{type(tokenizer).__name__} does not say which characters a token covers; use a fast one")
    bare = Tokenizer.from_str(inner.to_str())
    bare.no_truncation()
    bare.no_padding()
    bare.post_processor = None
    return bare


def _ends(offsets: NDArray[np.int64], length: int) -> list[int]:
    """Characters complete after each token, for ``offsets`` (tokens, 2) in a text of ``length`` characters.

    What no token covers belongs to the token before it. Tokens that begin before another's end share a character.
    """
    if not len(offsets):
        return []
    begins = np.append(np.minimum.accumulate(offsets[::-1, 0])[::-1][1:], length)
    return np.maximum.accumulate(np.where(offsets[:, 1] <= begins, begins, 0)).tolist()


def is_seam(text: str, at: int, seams: Seams) -> bool:
    """May tokens of ``text[:at]`` and of ``text[at:]`` stand side by side?"""
    if seams == "any" or at in (0, len(text)):
        return True
    if seams == "spaces":
        return text[at - 1] in SPACES or text[at] in SPACES
    left, right = text[max(0, at - WINDOW) : at], text[at : at + WINDOW]
    return _composed(left) + _composed(right) == _composed(left + right)


def _composed(text: str) -> str:
    return unicodedata.normalize("NFC", text)


class TokenText:
    """The text a cache stands for, with the tokens of its rows. It grows piece by piece and is never tokenised again.

    ``ends[i]`` characters are complete after token i; one that completes none repeats the number before it. ``start``
    tokens at the beginning (BOS) cover no text. Tokens of a character that is not complete yet may stand at the end.
    ``tokenizer``: key of the one that all tokens are of; a text with an empty key goes with none.
    """

    def __init__(self, seams: Seams = "any", start: Sequence[int] = (), tokenizer: str = "") -> None:
        self.seams, self.tokenizer = seams, tokenizer
        self.start = len(start)
        self.ids = list(start)
        self.ends = [0] * len(start)
        self._parts: list[str] = []  # joined when somebody asks
        self._length = 0

    @classmethod
    def of(cls, text: str, coder: Coder, start: Sequence[int] = ()) -> TokenText:
        made = cls(coder.seams, start, coder.key)
        made.append(text, coder)
        return made

    @property
    def text(self) -> str:
        if len(self._parts) > 1:
            self._parts = ["".join(self._parts)]
        return self._parts[0] if self._parts else ""

    def append(self, text: str, coder: Coder) -> None:
        """Tokenise a piece and put it behind the others. Where ``seams`` are spaces, it should begin beside one."""
        self._close(coder)
        self._add(coder.encode(text, first=not self._length), text)

    def extend(self, ids: Sequence[int], coder: Coder, text: str | None = None) -> None:
        """Put tokens that say ``text`` behind the others; without it (they were generated), what they decode to.

        A generated character whose last bytes are missing has no text yet: further tokens may complete it.
        """
        if text is None:
            self._add(*_spell([*self._take_open(), *ids], coder))
        else:
            self._close(coder)
            self._add(_locate(list(ids), text, coder, first=not self._length), text)

    def boundary(self, limit: int) -> tuple[int, int]:
        """(tokens, characters): the last place up to character ``limit`` where a token ends and a character, too."""
        after = bisect_right(self.ends, limit)
        characters = self.ends[after - 1] if after else 0
        return (bisect_left(self.ends, characters) + 1 if characters else self.start), characters

    def first(self, tokens: int) -> TokenText:
        """A copy of the first ``tokens``, those that cover no text at the least."""
        made = TokenText(self.seams, self.ids[: self.start], self.tokenizer)
        made._add(Coded(self.ids[self.start : tokens], self.ends[self.start : tokens]), self.text[: self._end(tokens)])
        return made

    def to_json(self) -> dict[str, Any]:
        return {
            "text": self.text, "ids": self.ids, "ends": self.ends, "start": self.start, "seams": self.seams,
            "tokenizer": self.tokenizer,
        }  # fmt: skip

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> TokenText:
        """Raises DataError where tokens and text do not fit together."""
        ids, ends, start, text, seams = (entry.get(name) for name in ("ids", "ends", "start", "text", "seams"))
        tokenizer = entry.get("tokenizer", "")  # older files do not say
        words = isinstance(text, str) and isinstance(tokenizer, str) and seams in get_args(Seams)
        if not (words and _numbers(ids, ends, [start])):
            raise DataError(f"the text of a cache lacks a part, or has one of a wrong kind: {sorted(entry)}; remove it")
        places = [*([0] * start), *ends[start:], len(text)]
        if not len(ids) == len(ends) == len(places) - 1 or list(ends) != places[:-1] or sorted(places) != places:
            raise DataError(
                f"{len(ids)} tokens with {len(ends)} ends do not fit {len(text)} characters; remove the cache"
            )
        made = cls(seams, ids[:start], tokenizer)
        made._add(Coded(ids[start:], ends[start:]), text)
        return made

    def _end(self, tokens: int) -> int:
        return self.ends[tokens - 1] if tokens else 0

    def _add(self, coded: Coded, text: str) -> None:
        last, base = self._end(len(self.ids)), self._length
        self.ids += coded.ids
        self.ends += [base + end if end else last for end in coded.ends]
        self._parts.append(text)
        self._length += len(text)

    def _take_open(self) -> list[int]:
        """Remove the tokens at the end that complete no character."""
        whole, _ = self.boundary(self._length)
        taken = self.ids[whole:]
        del self.ids[whole:], self.ends[whole:]
        return taken

    def _close(self, coder: Coder) -> None:
        """What is open will not be completed: it stays what a decoder shows for it."""
        taken = self._take_open()
        if taken:
            said = coder.decode(taken)
            self._add(Coded(taken, [0] * (len(taken) - 1) + [len(said)]), said)


def _numbers(*values: Any) -> bool:
    """Lists of whole numbers that are not negative?"""
    return all(isinstance(each, list) and all(type(x) is int and x >= 0 for x in each) for each in values)


def _spell(ids: list[int], coder: Coder) -> tuple[Coded, str]:
    """The text that generated tokens say, without a character at the end that is not complete."""
    said = coder.decode(ids)
    own = coder.encode(said)
    return (own, said) if own.ids == ids else _spell_each(ids, coder)


def _spell_each(ids: list[int], coder: Coder) -> tuple[Coded, str]:
    """As above, for tokens that no text is encoded to: they are decoded one by one, as characters get complete."""
    ends, said, begin = [], "", 0
    for stop in range(1, len(ids) + 1):
        more = coder.decode(ids[begin:stop])
        if not more.endswith(BROKEN) or stop - begin > LONGEST:
            said, begin = said + more, stop
        ends.append(len(said))
    return Coded(ids, ends), said


def _locate(ids: list[int], text: str, coder: Coder, first: bool) -> Coded:
    """Where tokens end in the text they say; as far as they do not decode to it, at its end only."""
    own = coder.encode(text, first)
    if own.ids == ids:
        return own
    coded, said = _spell_each(ids, coder)
    both = shared(said, text)
    agreed = max((end for end in coded.ends if end <= both), default=0)
    return Coded(ids, [*(min(end, agreed) for end in coded.ends[:-1]), len(text)][: len(ids)])


@dataclass(frozen=True, slots=True)
class Match:
    """What a stored text and a new one share. ``kind`` is the paper's word, by text alone."""

    kind: Kind
    tokens: int  # stored ones that begin the new prompt
    matched: int  # characters that both texts begin with
    rest: str  # text behind those tokens, to be tokenised

    @property
    def kept(self) -> int:
        """Rows that need no computing: one less where no text is left, since the last row's logits are needed."""
        return self.tokens if self.rest else max(self.tokens - 1, 0)


def match(stored: TokenText, text: str, threshold: float = 0.8, exact: Exact = "reuse") -> Match:
    """Compare a cache's text with a new prompt's (Semantic, table in section 3.3).

    Equal: all tokens stay, or none with ``exact="recompute"`` (the paper's choice). Begins with the stored text: all
    stay. Shares at least ``threshold`` of the stored text: those that lie within what is shared. Else none. Tokens that
    would meet the rest where no seam may be are left out too. Raises ConfigError.
    """
    if not 0 <= threshold <= 1:
        raise ConfigError(f"threshold={threshold} is no share of a text: use 0 to 1")
    check_choice("exact", exact, get_args(Exact))
    length = shared(stored.text, text)
    kind = _kind(len(stored.text), len(text), length, threshold)
    if kind == "miss" or (kind == "exact" and exact == "recompute"):
        return Match(kind, 0, length, text)
    tokens, characters = _last_seam(stored, text, length)
    return Match(kind, tokens, length, text[characters:])


def _kind(stored: int, new: int, both: int, threshold: float) -> Kind:
    if both == stored:
        return "exact" if both == new else "extend"
    return "diverge" if both >= threshold * stored else "miss"


def _last_seam(stored: TokenText, text: str, limit: int) -> tuple[int, int]:
    """(tokens, characters) up to the last seam of both texts that is no later than ``limit``."""
    old = stored.text
    tokens, characters = stored.boundary(limit)
    while not all(is_seam(each, characters, stored.seams) for each in (old, text)):
        tokens, characters = stored.boundary(characters - 1)
    return tokens, characters


def resume(stored: TokenText, found: Match, coder: Coder) -> tuple[TokenText, int]:
    """The new prompt's tokens, and how many of the cache's rows stay: one row at least is computed, if there is any."""
    told = stored.first(found.tokens)
    told.append(found.rest, coder)
    return told, min(found.kept, max(len(told.ids) - 1, 0))


def match_tokens(stored: Sequence[int], new: Sequence[int]) -> int:
    """How many token ids two prompts have in common at the beginning: what other caches go by."""
    return shared(list(stored), list(new))


def shared(one: str | list[int], other: str | list[int]) -> int:
    """Length of the common beginning. Slices are compared, half as long each time: linear, at the speed of memory."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
