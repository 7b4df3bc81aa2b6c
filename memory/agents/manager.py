"""Memories of many agents: each agent's rows in a host cache and a disk cache, matched by text.

The design is that of Semantic (technical report "Agent Memory Below the Prompt"). Stored rows are never modified in
place: a prompt extends a fork of the stored cache. `finish` replaces the stored cache by the fork.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from keep_agent.errors import CapacityError, ConfigError, TooLongError
from memory.agents.disk_cache import AgentRows, DiskCache, HostCache, Key
from memory.agents.text_match import Exact, Match, MatchKind, TokenizerCoder, TokenText, common_length, match, resume
from memory.engine.base import ChunkSchedule, Engine, PersistentCache
from memory.files.names import safe_id
from memory.kv_cache.block import Entry
from memory.kv_cache.quantization import PackFormat


@dataclass(frozen=True, eq=False)
class AgentPrompt:
    """Prompt ready to be computed: ``new`` tokens after the ``reused`` rows of ``cache``."""

    agent: str
    model: str  # key of the model that computes the rows
    cache: PersistentCache
    token_text: TokenText
    new: tuple[int, ...]
    reused: int
    kind: MatchKind
    origin: str  # source of the reused rows: hot (memory) | warm (disk) | shared | cold (no row is reused)
    coder: TokenizerCoder = field(repr=False)

    @property
    def key(self) -> Key:
        return self.agent, self.model


@dataclass(frozen=True)
class AgentModel:
    """A model with its tokenizer."""

    engine: Engine
    coder: TokenizerCoder
    start: tuple[int, ...]  # tokens in front of every prompt that cover no text, such as BOS

    def tokenized(self, token_text: TokenText) -> bool:
        """Tell whether this model's tokenizer made ``token_text``, and it begins with this model's start tokens."""
        same = token_text.tokenizer == self.coder.key and token_text.seams == self.coder.seams
        return same and tuple(token_text.ids[: token_text.start]) == self.start


@dataclass
class AgentMemories:
    """Memories of many agents: `open` makes a prompt that reuses stored rows, `finish` stores its rows. Thread-safe.

    An agent reads only its own rows, and a shared prefix that was declared by `share`. A prompt has to be finished or
    abandoned before the agent's next one is opened; until then the agent's memory does not change. Rows are
    written to ``folder`` in the background: by `finish` with ``persist``, by `flush`, or when they are evicted from
    memory. The least recently used are evicted first. Without a folder, rows are lost with the process.

    :param host_bytes: limit of the bytes of all rows in memory, enforced by `finish`; None: no limit
    :param disk_bytes: limit of all files, beyond which the least recently used are deleted; None: no limit
    :param quota_bytes: an agent's rows are not evicted for other agents while they take at most this many bytes.
        In memory the rows of each model count separately. On the disk all files of the agent count together
    :param ttl_seconds: seconds after their last use at which rows are deleted, files included; None: never
    :param threshold: a prompt reuses stored rows only if it begins with at least this share of their text
    :param exact: for a prompt equal to the stored text, ``reuse`` all rows but the last, or ``recompute`` all
    """

    engine: Engine
    coder: TokenizerCoder
    format: PackFormat = field(default_factory=PackFormat)  # of all agents' rows
    folder: Path | None = None
    host_bytes: int | None = None
    disk_bytes: int | None = None
    quota_bytes: int = 0
    ttl_seconds: float | None = None
    threshold: float = 0.8
    exact: Exact = "reuse"
    start: Sequence[int] = ()  # tokens in front of every prompt that cover no text, such as BOS
    pinned: Sequence[str] = ()  # agents that are pinned at the start
    clock: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        match(TokenText(), "", self.threshold, self.exact)  # raises for invalid settings
        self._model = AgentModel(self.engine, self.coder, tuple(self.start))
        self._host = HostCache()
        self._open_prompts: dict[Key, object] = {}  # open prompts; placeholders while one is being opened or finished
        self._shared: dict[tuple[str, str], AgentRows] = {}  # rows of shared prefixes, by name and model
        self._shared_texts: dict[str, str] = {}  # texts of shared prefixes, by name
        self._shared_names: dict[str, str] = {}  # name of the shared prefix of each agent
        self._pinned = frozenset(map(safe_id, self.pinned))
        self._deleting: set[str] = set()  # agents that `forget` is deleting
        self._closed = False
        self._lock = threading.Lock()
        folder = None if self.folder is None else Path(self.folder)
        limits = self.disk_bytes, self.clock, self.ttl_seconds
        self._disk = DiskCache(folder, *limits, lambda: self._pinned, self.quota_bytes)

    @property
    def damaged(self) -> list[str]:
        """Errors of files that could not be read."""
        return list(self._disk.damaged)

    def open(self, agent: str, text: str) -> AgentPrompt:
        """Find the rows of the agent's memory that ``text`` can reuse, and the tokens to compute after them.

        :raises ConfigError: the agent id is not a safe file name, the agent has an open prompt, or the text is empty
        :raises TooLongError: the prompt leaves no position of the model for another token
        """
        model = self._model
        key = safe_id(agent), model.engine.model_key
        claim = self._claim(key)
        try:
            prompt = self._make_prompt(key, text, model, claim)
            self._replace_open(key, claim, prompt)
        finally:
            self._release(key, claim)  # no effect after success: the prompt has replaced the claim
        return prompt

    def finish(
        self, prompt: AgentPrompt, generated: Sequence[int] = (), text: str | None = None, persist: bool = True
    ) -> None:
        """Make a computed prompt, and the ``generated`` tokens after it, the agent's memory.

        Tokens that were not computed (after a cancelled request) are left out.

        :param text: the text of the generated tokens, if it is known; None: decode them
        :raises ConfigError: the prompt was finished or abandoned before, or its agent was forgotten. Also if a request
            still extends the prompt's cache; then the prompt stays open
        :raises CapacityError: shared and pinned rows, and rows within a quota, exceed ``host_bytes`` together; the
            prompt is stored anyway
        """
        if prompt.cache.requests:
            raise ConfigError(
                f"a request of agent {prompt.agent!r} has not ended: call collect() on its stream, even if you "
                "cancelled it, before you finish the prompt"
            )
        claim = object()
        self._replace_open(prompt.key, prompt, claim)
        try:
            rows = self._computed_rows(prompt, generated, text)
            if rows.token_text.text:
                with self._lock:
                    if self._open_prompts.get(prompt.key) is claim:  # otherwise the agent was forgotten
                        self._host[prompt.key] = rows
                        self._host.move_to_end(prompt.key)
                        if persist:
                            self._disk.put(prompt.key, rows)
        finally:
            self._release(prompt.key, claim)
        self._evict(prompt.key)

    def abandon(self, prompt: AgentPrompt) -> None:
        """Drop a prompt that will not be finished, if it is open; the agent's memory does not change.

        The prompt may still be computed: its cache belongs to no agent.
        """
        self._release(prompt.key, prompt)

    @contextmanager
    def turn(self, agent: str, text: str) -> Iterator[AgentPrompt]:
        """Open a prompt for a ``with`` block, and `abandon` it at the end unless the block has finished it."""
        prompt = self.open(agent, text)
        try:
            yield prompt
        finally:
            self.abandon(prompt)

    def share(self, name: str, text: str) -> None:
        """Declare a prefix that agents may share: it is computed once for each model, and read-only."""
        self._encode_shared(name, text, self._model)
        self._shared_texts[name] = text

    def begin_with(self, agent: str, name: str) -> None:
        """Let an agent's prompts reuse the shared prefix ``name`` if they cannot reuse the agent's own memory.

        :raises ConfigError: no prefix is shared under this name, or the agent id is not a safe file name
        """
        if name not in self._shared_texts:
            known = ", ".join(sorted(self._shared_texts)) or "nothing"
            raise ConfigError(f"no prefix is shared as {name!r}; shared: {known}")
        self._shared_names[safe_id(agent)] = name

    def use(self, engine: Engine, coder: TokenizerCoder | None = None, start: Sequence[int] | None = None) -> None:
        """Change to another model. Rows of the old one stay stored, and are reused after a change back to it.

        Open prompts are finished with the model that they were opened for. Shared texts are computed for the new model.

        :param coder: tokenizer of the new model; None keeps the current one
        :param start: tokens in front of every prompt; None keeps the current ones
        """
        old = self._model
        model = AgentModel(engine, coder or old.coder, old.start if start is None else tuple(start))
        for name, text in list(self._shared_texts.items()):
            rows = self._shared.get((name, engine.model_key))
            if rows is None or not model.tokenized(rows.token_text) or rows.token_text.text != text:
                self._encode_shared(name, text, model)
        self.engine, self.coder, self.start, self._model = engine, model.coder, model.start, model

    def pin(self, agent: str, pinned: bool = True) -> None:
        """Keep an agent's rows in memory and on the disk, whatever their size and age; ``pinned=False`` ends this."""
        with self._lock:
            self._pinned = self._pinned | {safe_id(agent)} if pinned else self._pinned - {safe_id(agent)}

    def forget(self, agent: str) -> bool:
        """Delete all rows of an agent, for every model; returns whether there were rows or an open prompt.

        The agent's open prompt can no longer be finished.
        """
        with self._lock:
            self._deleting.add(safe_id(agent))
            keys = [(rows, key) for rows in (self._host, self._open_prompts) for key in rows if key[0] == agent]
            for rows, key in keys:
                del rows[key]
        try:
            return bool(self._disk.forget(agent) or keys)
        finally:
            with self._lock:
                self._deleting.discard(agent)

    def flush(self, agents: Collection[str] | None = None) -> None:
        """Write changed rows, and wait until they are on the disk. Rows of a prompt are not written before `finish`.

        :param agents: owners of the rows; None: all agents
        :raises Exception: error of a file that could not be written, now or earlier; the other files are written
        """
        with self._lock:
            failed = self._disk.failed
            for key, rows in self._host.items():
                if (rows.changed or key in failed) and (agents is None or key[0] in agents):
                    self._disk.put(key, rows)
        self._disk.wait_for_writes(lambda key: agents is None or key[0] in agents)
        with self._lock:
            cached = set(self._host)
        self._disk.raise_failed(cached, agents)

    def stats(self) -> dict[str, int]:
        """Count agents and bytes in memory (shared rows once), bytes on the disk, damaged files, failed writes."""
        on_disk, failed = self._disk.nbytes, len(self._disk.failed)
        with self._lock:
            nbytes = self._host.ledger(self._shared.values()).nbytes + self._shared_bytes()
            counts = {"agents": len(self._host), "bytes": nbytes, "disk_bytes": on_disk}
            return {**counts, "damaged": len(self.damaged), "failed": failed}

    def close(self) -> None:
        """Write changed rows, and stop. Raises as `flush` does. May be called twice."""
        if self._closed:
            return
        self._closed = True
        try:
            self.flush()
        finally:
            self._disk.close()

    def __enter__(self) -> AgentMemories:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _claim(self, key: Key) -> object:
        with self._lock:
            if key in self._open_prompts:
                raise ConfigError(f"agent {key[0]!r} has an open prompt: finish or abandon it before the next")
            if key[0] in self._deleting:
                raise ConfigError(f"agent {key[0]!r} is being forgotten: open the prompt again when that is done")
            self._expire()
            self._open_prompts[key] = claim = object()
            return claim

    def _replace_open(self, key: Key, old: object, new: object) -> None:
        """Replace the agent's ``old`` prompt or placeholder by ``new``."""
        with self._lock:
            if self._open_prompts.get(key) is not old:
                raise ConfigError(
                    f"the prompt of agent {key[0]!r} is not open: it was finished or abandoned, or the agent was "
                    "forgotten; open another"
                )
            self._open_prompts[key] = new

    def _release(self, key: Key, claim: object) -> None:
        with self._lock:
            if self._open_prompts.get(key) is claim:
                del self._open_prompts[key]

    def _make_prompt(self, key: Key, text: str, model: AgentModel, claim: object) -> AgentPrompt:
        rows, origin = self._find(key, model, claim)
        matched = None if rows is None else match(rows.token_text, text, self.threshold, self.exact)
        if rows is None or matched is None or matched.kind == "miss":
            rows, matched, origin = self._begin_shared(key, text, model)
        token_text, reused = resume(rows.token_text, matched, model.coder)
        if not token_text.ids:
            raise ConfigError(f"the prompt of agent {key[0]!r} is empty: give a text")
        if len(token_text.ids) >= (limit := model.engine.info.max_positions):
            raise TooLongError(
                f"the prompt has {len(token_text.ids)} tokens, but this model accepts at most {limit - 1}; shorten it"
            )
        if reused == 0:
            origin = "cold"
        cache = rows.cache.fork() if reused else model.engine.new_cache(self.format)
        if reused < cache.next_position:
            cache.cut(reused)
        new = tuple(token_text.ids[reused:])
        return AgentPrompt(*key, cache, token_text, new, reused, matched.kind, origin, model.coder)

    def _find(self, key: Key, model: AgentModel, claim: object) -> tuple[AgentRows | None, str]:
        """Find the agent's own rows, in memory or on the disk."""
        with self._lock:
            rows, origin = self._host.get(key), "hot"
        if rows is None:
            rows, origin = self._disk.get(key, model.engine), "warm"
            if rows is None or rows.cache.format != self.format:
                return None, origin
            with self._lock:
                if self._open_prompts.get(key) is claim:  # otherwise the agent was forgotten
                    self._host[key] = rows
        return rows if model.tokenized(rows.token_text) else None, origin

    def _begin_shared(self, key: Key, text: str, model: AgentModel) -> tuple[AgentRows, Match, str]:
        """Return the shared rows, if the text can reuse any of them, else an empty cache."""
        shared = self._shared.get((self._shared_names.get(key[0], ""), key[1]))
        if shared is not None and model.tokenized(shared.token_text):
            matched = match(shared.token_text, text, self.threshold, self.exact)
            if matched.reused:
                return shared, matched, "shared"
        empty = TokenText.of("", model.coder, model.start)
        return AgentRows(model.engine.new_cache(self.format), empty, self.clock()), Match("miss", 0, 0, text), "cold"

    def _computed_rows(self, prompt: AgentPrompt, generated: Sequence[int], text: str | None) -> AgentRows:
        """Return a prompt's rows with their text, up to the last token whose row was computed."""
        token_text, cache = prompt.token_text.first(len(prompt.token_text.ids)), prompt.cache
        if generated:
            token_text.extend(generated, prompt.coder, text)
        rows = common_length(token_text.ids, list(cache.tokens))
        cache.cut(rows)
        if rows < len(token_text.ids):
            token_text = token_text.first(rows)
        return AgentRows(cache, token_text, self.clock(), changed=True)

    def _encode_shared(self, name: str, text: str, model: AgentModel) -> None:
        token_text, cache = TokenText.of(text, model.coder, model.start), model.engine.new_cache(self.format)
        model.engine.extend(cache, token_text.ids, ChunkSchedule())
        cache.freeze()
        with self._lock:
            self._shared[name, model.engine.model_key] = AgentRows(cache, token_text, self.clock())

    def _shared_bytes(self) -> int:
        return sum(rows.cache.nbytes for rows in self._shared.values())

    def _is_pinned(self, entry: Entry) -> bool:
        return entry.key[0] in self._pinned

    def _evict(self, current: Key) -> None:
        """Above the budget, evict the least recently used rows of agents above their quota, then ``current``'s."""
        budget = self.host_bytes
        if budget is None:
            return

        def movable(entry: Entry) -> bool:
            return bool(entry.nbytes) and not self._is_pinned(entry) and entry.key not in self._open_prompts

        with self._lock:
            shared, ledger = self._shared_bytes(), self._host.ledger(self._shared.values())
            victims = ledger.victims(
                shared + ledger.nbytes - budget,
                lambda entry, share: movable(entry) and entry.key != current and share > self.quota_bytes,
                lambda entry, _: movable(entry) and entry.key == current,
            )
            failed = self._disk.failed
            for entry in victims:
                rows = self._host.pop(entry.key)
                ledger.remove(entry.key)
                if rows.changed or entry.key in failed:
                    self._disk.put(entry.key, rows)
        evicted = {entry.key for entry in victims}
        self._disk.wait_for_writes(evicted.__contains__)  # their rows stay in memory until they are written
        protected = (e.nbytes for e in ledger if self._is_pinned(e) or e.nbytes <= self.quota_bytes)
        if (total := shared + sum(protected)) > budget:
            raise CapacityError(
                f"rows of {total} bytes are shared, pinned or within a quota, but host_bytes={budget}: raise it, "
                "lower quota_bytes, or unpin agents"
            )

    def _expire(self) -> None:
        if self.ttl_seconds is None:
            return
        expired = self._host.ledger().expired(self.clock() - self.ttl_seconds)
        keys = [entry.key for entry in expired if not self._is_pinned(entry) and entry.key not in self._open_prompts]
        for key in keys:
            del self._host[key]
        if keys:
            self._disk.evict()
