"""Text match: the rows of a cache that a new prompt can reuse, found by text instead of tokens.

The tokens of a text depend on the characters around it: the ids of two prompts may differ long before their texts
differ. So texts are compared, and the common part is mapped to tokens (Semantic, "Agent Memory Below the Prompt",
section 3.3). A seam is a place where separately encoded pieces of text are joined.
"""

from __future__ import annotations

import hashlib
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np
from tokenizers import Tokenizer

from keep_agent.errors import ConfigError, DataError, ModelError, check_choice

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from transformers import PreTrainedTokenizerBase

MatchKind = Literal["exact", "extend", "diverge", "miss"]
Exact = Literal["reuse", "recompute"]
SeamRule = Literal["any", "composed", "spaces"]  # where seams are allowed, see `TokenizerCoder`

REPLACEMENT = "\ufffd"  # decoders' output for bytes that are not, or not yet, a character
SPACES = " \t\n"
WINDOW = 16  # characters tested on each side of a seam: Unicode composition (NFC) must not join the two sides
MAX_INCOMPLETE = 8  # tokens after which an incomplete character counts as text; a character has at most four bytes
ANCHORS = ("", "\n", "0", ";", "q")  # a text is encoded after the first of these that shares no token with it
PROBES = (  # (text, continuation), encoded separately: the tokens of both must decode to the joined text
    ("go to fri", "dge_1"), ("go to", " fridge_1"), ("go to ", "fridge_1"), ("a", "  b"), ("a ", " b"), ("a  ", "b"),
    ("a\n", "b"), ("a", "\nb"), ("a\n", "\n\nb"), ("a\n", "  b"), ("a", " \n b"), ("a", "."), ("1", "23"), ("x", "🙂"),
    ("cafe", "\u0301 b"),
)  # fmt: skip


class EncodedText(NamedTuple):
    """Tokens of a text and, for each token, the number of the text's characters that are complete after it.

    A token that ends inside a character has the same number as the token before it.
    """

    ids: list[int]
    ends: list[int]


class TokenizerCoder:
    """Tokenizer that encodes a text as the continuation of another one; ``key`` is the hash of the tokenizer.

    Many tokenizers (SentencePiece) add a leading space when they encode and remove it when they decode. So a
    continuation is encoded after a short text, the anchor, whose tokens are cut off. At an allowed seam, the tokens of
    both pieces decode to the joined text; this is tested when the coder is made. ``seams`` tells where seams are
    allowed. ``any``: everywhere. ``composed``: not between characters that NFC composes to one. ``spaces``: beside a
    space, tab or newline. Raises ModelError for a tokenizer without allowed seams, DataError for invalid Unicode.
    """

    def __init__(self, tokenizer: Tokenizer | PreTrainedTokenizerBase) -> None:
        self._tokenizer = _plain_tokenizer(tokenizer)
        self.key = hashlib.sha256(self._tokenizer.to_str().encode()).hexdigest()
        self.seams, self._anchors = self._probe()
        self._lead = self.encode("q", first=True).ids

    def encode(self, text: str, first: bool = False) -> EncodedText:
        """Tokenise text that follows other text, or (``first``) begins a prompt; no special tokens are added."""
        for anchor in ("",) if first else self._anchors:
            if (encoded := self._encode_behind(anchor, text)) is not None:
                return encoded
        raise ModelError(f"the tokenizer merges {text[:8]!r} with any text before it; begin the piece elsewhere")

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of tokens that follow other text."""
        return self._decode([*self._lead, *ids])[len(self._decode(self._lead)) :]

    def _encode_behind(self, anchor: str, text: str) -> EncodedText | None:
        """Encode ``text`` after an anchor, which is cut off; None if a token covers characters of both."""
        try:
            encoding = self._tokenizer.encode(anchor + text, add_special_tokens=False)
        except TypeError as error:  # half of a surrogate pair
            raise DataError(f"{text[:40]!r}... is not valid Unicode; replace lone surrogates") from error
        offsets = np.array(encoding.offsets, np.int64).reshape(-1, 2) - len(anchor)
        cut = int((offsets[:, 0] < 0).sum())
        if (offsets[:cut, 1] > 0).any():
            return None
        return EncodedText(encoding.ids[cut:], _ends(offsets[cut:], len(text)))

    def _decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)

    def _probe(self) -> tuple[SeamRule, tuple[str, ...]]:
        """Choose the least strict seam rule with which all probes decode correctly, and the anchors that achieve it."""
        for seams in get_args(SeamRule):
            probes = [probe for probe in PROBES if is_seam("".join(probe), len(probe[0]), seams)]
            anchors = tuple(a for a in ANCHORS if all(self._joins(a, *probe) is not False for probe in probes))
            if all(any(self._joins(anchor, *probe) for anchor in anchors) for probe in probes):
                return seams, anchors
        raise ModelError(
            "the tokenizer cannot continue a text: separately encoded pieces do not decode to the whole text; "
            "compare tokens instead, or use another model"
        )

    def _joins(self, anchor: str, before: str, after: str) -> bool | None:
        """Tell whether both pieces decode to the same text as the whole; None if the anchor merges with ``after``."""
        encoded = self._encode_behind(anchor, after)
        if encoded is None:
            return None
        whole = self.encode(before + after, first=True).ids
        return self._decode([*self.encode(before, first=True).ids, *encoded.ids]) == self._decode(whole)


def _plain_tokenizer(tokenizer: Tokenizer | PreTrainedTokenizerBase) -> Tokenizer:
    """Copy a tokenizer without truncation, padding and post-processor: offsets of tokens then include spaces."""
    inner = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if not isinstance(inner, Tokenizer):
        raise ModelError(f"{type(tokenizer).__name__} does not tell the characters of a token; use a fast tokenizer")
    bare = Tokenizer.from_str(inner.to_str())
    bare.no_truncation()
    bare.no_padding()
    bare.post_processor = None
    return bare


def _ends(offsets: NDArray[np.int64], length: int) -> list[int]:
    """Count the complete characters after each token, for ``offsets`` (tokens, 2) in a text of ``length`` characters.

    Characters without a token belong to the token before. A character of several tokens is complete after the last.
    """
    if not len(offsets):
        return []
    begins = np.append(np.minimum.accumulate(offsets[::-1, 0])[::-1][1:], length)
    return np.maximum.accumulate(np.where(offsets[:, 1] <= begins, begins, 0)).tolist()


def is_seam(text: str, at: int, seams: SeamRule) -> bool:
    """Tell whether tokens of ``text[:at]`` and of ``text[at:]`` may be joined."""
    if seams == "any" or at in (0, len(text)):
        return True
    if seams == "spaces":
        return text[at - 1] in SPACES or text[at] in SPACES
    before, after = text[max(0, at - WINDOW) : at], text[at : at + WINDOW]
    return _compose(before) + _compose(after) == _compose(before + after)


_compose = partial(unicodedata.normalize, "NFC")


class TokenText:
    """Text of a cache, with the tokens of its rows. It grows piece by piece and is never tokenised again.

    ``ends[i]`` characters are complete after token i; a token that completes none has the number of the token before.
    ``start`` tokens at the beginning (BOS) cover no text. The last tokens may be part of an incomplete character.
    ``tokenizer``: key of the tokenizer of all tokens.
    """

    def __init__(self, seams: SeamRule = "any", start: Sequence[int] = (), tokenizer: str = "") -> None:
        self.seams, self.tokenizer = seams, tokenizer
        self.start = len(start)
        self.ids = list(start)
        self.ends = [0] * len(start)
        self._parts: list[str] = []  # joined when they are read
        self._length = 0

    @classmethod
    def of(cls, text: str, coder: TokenizerCoder, start: Sequence[int] = ()) -> TokenText:
        token_text = cls(coder.seams, start, coder.key)
        token_text.append(text, coder)
        return token_text

    @property
    def text(self) -> str:
        if len(self._parts) > 1:
            self._parts = ["".join(self._parts)]
        return self._parts[0] if self._parts else ""

    def append(self, text: str, coder: TokenizerCoder) -> None:
        """Tokenise and append a piece, which should begin with or follow a space if ``seams`` is ``spaces``."""
        self._complete(coder)
        self._add(coder.encode(text, first=not self._length), text)

    def extend(self, ids: Sequence[int], coder: TokenizerCoder, text: str | None = None) -> None:
        """Append tokens with their ``text``; without a text (generated tokens), they are decoded.

        A generated character whose last bytes are missing has no text until further tokens complete it.
        """
        if text is None:
            ids = [*self._pop_incomplete(), *ids]
            text = coder.decode(ids)
            encoded = coder.encode(text)
            self._add(*((encoded, text) if encoded.ids == ids else _spell_each(ids, coder)))
        else:
            self._complete(coder)
            self._add(_locate(list(ids), text, coder, first=not self._length), text)

    def boundary(self, limit: int) -> tuple[int, int]:
        """Find the last place (tokens, characters) up to character ``limit`` where both a token and a character end."""
        after = bisect_right(self.ends, limit)
        characters = self.ends[after - 1] if after else 0
        return (bisect_left(self.ends, characters) + 1 if characters else self.start), characters

    def first(self, tokens: int) -> TokenText:
        """Copy the first ``tokens`` tokens, but at least the ``start`` tokens."""
        copy = TokenText(self.seams, self.ids[: self.start], self.tokenizer)
        rest = slice(self.start, tokens)
        copy._add(EncodedText(self.ids[rest], self.ends[rest]), self.text[: self._end(tokens)])
        return copy

    def to_json(self) -> dict[str, Any]:
        names = "text", "ids", "ends", "start", "seams", "tokenizer"
        return {name: getattr(self, name) for name in names}

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> TokenText:
        """Read the JSON of `to_json`. Raises DataError if tokens and text do not fit together."""
        ids, ends, start, text, seams = (entry.get(name) for name in ("ids", "ends", "start", "text", "seams"))
        tokenizer = entry.get("tokenizer", "")  # missing in older files
        words = isinstance(text, str) and isinstance(tokenizer, str) and seams in get_args(SeamRule)
        if not (words and _numbers(ids, ends, [start])):
            raise DataError(f"a cache's text has missing or invalid fields ({sorted(entry)}); delete the cache's file")
        places = [*([0] * start), *ends[start:], len(text)]
        if not len(ids) == len(ends) == len(places) - 1 or list(ends) != places[:-1] or sorted(places) != places:
            raise DataError(
                f"{len(ids)} tokens with {len(ends)} ends do not fit {len(text)} characters; delete the cache's file"
            )
        token_text = cls(seams, ids[:start], tokenizer)
        token_text._add(EncodedText(ids[start:], ends[start:]), text)
        return token_text

    def _end(self, tokens: int) -> int:
        return self.ends[tokens - 1] if tokens else 0

    def _add(self, encoded: EncodedText, text: str) -> None:
        last, base = self._end(len(self.ids)), self._length
        self.ids += encoded.ids
        self.ends += [base + end if end else last for end in encoded.ends]
        self._parts.append(text)
        self._length += len(text)

    def _pop_incomplete(self) -> list[int]:
        """Remove the tokens at the end that complete no character."""
        whole, _ = self.boundary(self._length)
        open_ids = self.ids[whole:]
        del self.ids[whole:], self.ends[whole:]
        return open_ids

    def _complete(self, coder: TokenizerCoder) -> None:
        """Give the tokens of an incomplete last character the text that the decoder outputs for them."""
        ids = self._pop_incomplete()
        if ids:
            text = coder.decode(ids)
            self._add(EncodedText(ids, [0] * (len(ids) - 1) + [len(text)]), text)


def _numbers(*values: Any) -> bool:
    """Tell whether these are lists of integers from 0 on."""
    return all(isinstance(value, list) and all(type(x) is int and x >= 0 for x in value) for value in values)


def _spell_each(ids: list[int], coder: TokenizerCoder) -> tuple[EncodedText, str]:
    """Decode ``ids`` one by one to find where characters end; for ids that are not the encoding of their own text."""
    ends, text, begin = [], "", 0
    for stop in range(1, len(ids) + 1):
        more = coder.decode(ids[begin:stop])
        if not more.endswith(REPLACEMENT) or stop - begin > MAX_INCOMPLETE:
            text, begin = text + more, stop
        ends.append(len(text))
    return EncodedText(ids, ends), text


def _locate(ids: list[int], text: str, coder: TokenizerCoder, first: bool) -> EncodedText:
    """Find tokens' ends in ``text``. After its first difference from the decoded ``ids``, only the last has one."""
    encoded = coder.encode(text, first)
    if encoded.ids == ids:
        return encoded
    single, decoded = _spell_each(ids, coder)
    common = common_length(decoded, text)
    last = max((end for end in single.ends if end <= common), default=0)
    return EncodedText(ids, [*(min(end, last) for end in single.ends[:-1]), len(text)][: len(ids)])


@dataclass(frozen=True, slots=True)
class Match:
    """Common prefix of a stored text and a new prompt. ``kind`` is the paper's term; tokens do not affect it."""

    kind: MatchKind
    tokens: int  # number of stored tokens that are a prefix of the new prompt
    matched: int  # number of characters of the common prefix of both texts
    rest: str  # text of the new prompt after the ``tokens``, still to be tokenised

    @property
    def reused(self) -> int:
        """Number of rows to reuse: ``tokens``, or one less if no text remains, because logits need a computed row."""
        return self.tokens if self.rest else max(self.tokens - 1, 0)


def match(stored: TokenText, text: str, threshold: float = 0.8, exact: Exact = "reuse") -> Match:
    """Compare a cache's text with a new prompt's (Semantic, table in section 3.3).

    If the texts are equal, all tokens are reused, or none with ``exact="recompute"`` (the paper's choice). If the
    prompt continues the stored text, all tokens are reused. If it begins with at least the share ``threshold`` of the
    stored text, the tokens of this part are reused, otherwise none. Reused tokens end at a seam. Raises ConfigError.
    """
    if not 0 <= threshold <= 1:
        raise ConfigError(f"threshold={threshold} is not a share of a text: use 0 to 1")
    check_choice("exact", exact, get_args(Exact))
    length, total = common_length(stored.text, text), len(stored.text)
    if length == total:
        kind = "exact" if length == len(text) else "extend"
    else:
        kind = "diverge" if length >= threshold * total else "miss"
    if kind == "miss" or (kind == "exact" and exact == "recompute"):
        return Match(kind, 0, length, text)
    tokens, characters = stored.boundary(length)
    while not all(is_seam(whole, characters, stored.seams) for whole in (stored.text, text)):
        tokens, characters = stored.boundary(characters - 1)
    return Match(kind, tokens, length, text[characters:])


def resume(stored: TokenText, matched: Match, coder: TokenizerCoder) -> tuple[TokenText, int]:
    """Return the new prompt's tokens, and the number of rows to reuse, which leaves at least one row to compute."""
    token_text = stored.first(matched.tokens)
    token_text.append(matched.rest, coder)
    return token_text, min(matched.reused, max(len(token_text.ids) - 1, 0))


def common_length(a: str | list[int], b: str | list[int]) -> int:
    """Measure the common prefix by a binary search that compares slices, in linear time at memory speed."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
