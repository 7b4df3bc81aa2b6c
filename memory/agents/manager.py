"""The memories of many agents: each its own rows, hot in memory or warm on a disk, matched by text (Semantic).

What an agent remembers never changes: a prompt goes on in a fork, which takes its place when the prompt is finished.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from keep_agent.errors import ConfigError, TooLongError
from memory.agents.disk_cache import DiskCache
from memory.agents.host_cache import CacheEntry, HostCache, Key, Room
from memory.agents.text_match import Coder, Exact, Kind, Match, TokenText, match, match_tokens, resume
from memory.engine.base import Engine
from memory.engine.chunking import ChunkSchedule
from memory.files.names import checked
from memory.kv_cache.quantization import PackFormat
from memory.kv_cache.quantized import QuantizedCache


@dataclass(frozen=True, eq=False)
class AgentPrompt:
    """A prompt that is ready to be computed: behind the ``kept`` rows of ``cache`` come ``new`` tokens."""

    agent: str
    model: str  # key of the model that the rows are of
    cache: QuantizedCache
    told: TokenText
    new: tuple[int, ...]
    kept: int
    kind: Kind
    origin: str  # hot | warm | shared | cold: where the rows were
    coder: Coder = field(repr=False)

    @property
    def key(self) -> Key:
        return self.agent, self.model


@dataclass(frozen=True)
class Speaker:
    """A model, and how it is spoken to."""

    engine: Engine
    coder: Coder
    start: tuple[int, ...]  # tokens in front of every prompt that are no text

    def begins(self, told: TokenText) -> bool:
        """Were these tokens made in the same way?"""
        same = told.tokenizer == self.coder.key and told.seams == self.coder.seams
        return same and tuple(told.ids[: told.start]) == self.start


@dataclass
class AgentMemories:
    """Opens agents' memories, and puts them away again. Threads may share it.

    An agent sees its own rows only, and a shared beginning that was declared by `share`. Agents' prompts are made one
    after another: a prompt has to be finished, or abandoned, before the agent's next one. Until it is finished the
    agent's memory is what it was. Rows go to ``folder`` (None: they are lost with the process) in the background when
    they are persisted, or when the least recently used have to leave memory.

    :param host_bytes: of rows in memory between prompts; None: no limit
    :param quota_bytes: an agent that holds no more than this is not put out of memory by others, and one whose files
        have no more together not off the disk
    :param ttl_seconds: rows that were not used for so long are forgotten, on the disk too; None: never
    :param exact: what becomes of a prompt that is the stored text: ``reuse`` all but the last row, or ``recompute``
    """

    engine: Engine
    coder: Coder
    format: PackFormat = field(default_factory=PackFormat)
    folder: Path | None = None
    host_bytes: int | None = None
    disk_bytes: int | None = None
    quota_bytes: int = 0
    ttl_seconds: float | None = None
    threshold: float = 0.8
    exact: Exact = "reuse"
    start: Sequence[int] = ()  # tokens in front of every prompt that are no text
    pinned: Sequence[str] = ()  # agents that are pinned from the beginning
    clock: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        match(TokenText(), "", self.threshold, self.exact)  # raises for settings that cannot work
        self._speaker = Speaker(self.engine, self.coder, tuple(self.start))
        self._hot = HostCache()
        self._under_way: dict[Key, object] = {}  # a prompt, or a token of one that is being opened or finished
        self._shared: dict[tuple[str, str], CacheEntry] = {}  # by name and model
        self._texts: dict[str, str] = {}  # of what is shared, by name
        self._behind: dict[str, str] = {}  # agent -> name of what is shared
        self._pinned = frozenset(map(checked, self.pinned))
        self._leaving: set[str] = set()  # who is being forgotten
        self._closed = False
        self._lock = threading.Lock()
        self._warm: DiskCache | None = None
        if self.folder is not None:
            knobs = self.disk_bytes, self.clock, self.ttl_seconds
            self._warm = DiskCache(Path(self.folder), *knobs, lambda: self._pinned, self.quota_bytes)

    @property
    def damaged(self) -> list[str]:
        """What was wrong with files that could not be read, and are ignored."""
        return [] if self._warm is None else list(self._warm.damaged)

    # -- prompts -------------------------------------------------------------------------------------------------------

    def open(self, agent: str, text: str) -> AgentPrompt:
        """What of ``text`` the agent's memory already holds, and what is to be computed behind it.

        :raises ConfigError: an agent id that is no safe name, or one that has a prompt under way; a prompt of nothing
        """
        speaker = self._speaker
        key = checked(agent), speaker.engine.model_key
        token = self._claim(key)
        try:
            prompt = self._opened(key, text, speaker, token)
            self._pass_on(key, token, prompt)
        finally:
            self._release(key, token)  # nothing, if all went well
        return prompt

    def finish(
        self, prompt: AgentPrompt, generated: Sequence[int] = (), text: str | None = None, persist: bool = True
    ) -> None:
        """The prompt was computed, and ``generated`` tokens behind it: they are the agent's memory now.

        What was not computed after all (a cancelled request) is left out: rows and tokens have to agree.

        :param text: what the generated tokens say, where that is known better than by decoding them
        :raises ConfigError: the prompt is not under way: it was finished or abandoned, or its agent forgotten; or a
            stream still goes on in its cache, and it stays under way
        :raises CapacityError: what is pinned or within its quota takes more than ``host_bytes``; the turn is kept
        """
        if prompt.cache.requests:
            raise ConfigError(
                f"a request of agent {prompt.agent!r} has not ended: wait for its stream, also for a cancelled one "
                "(collect), before the prompt is finished"
            )
        token = object()
        self._pass_on(prompt.key, prompt, token)
        try:
            held = self._told(prompt, generated, text)
            if held.told.text:
                self._keep(prompt.key, token, held, persist)
        finally:
            self._release(prompt.key, token)
        self._make_room(prompt.key)

    def abandon(self, prompt: AgentPrompt) -> None:
        """Forget a prompt that will not be finished, or nothing if it is not under way.

        The agent's memory is what it was. The prompt may still be being computed: its cache is nobody's now.
        """
        self._release(prompt.key, prompt)

    @contextmanager
    def turn(self, agent: str, text: str) -> Iterator[AgentPrompt]:
        """`open`, and `abandon` if the prompt is not finished at the end of the block."""
        prompt = self.open(agent, text)
        try:
            yield prompt
        finally:
            self.abandon(prompt)

    # -- what rests ----------------------------------------------------------------------------------------------------

    def share(self, name: str, text: str) -> None:
        """Declare a beginning that agents may share: it is computed once a model, read-only, and no agent's own."""
        self._encode_shared(name, text, self._speaker)
        self._texts[name] = text

    def behind(self, agent: str, name: str) -> None:
        """Let prompts of an agent that its own memory does not serve begin with what is shared under ``name``.

        :raises ConfigError: nothing is shared under this name, or the agent id is no safe name
        """
        if name not in self._texts:
            known = ", ".join(sorted(self._texts)) or "nothing"
            raise ConfigError(f"nothing is shared as {name!r}; shared is: {known}")
        self._behind[checked(agent)] = name

    def use(self, engine: Engine, coder: Coder | None = None, start: Sequence[int] | None = None) -> None:
        """Go on with another model. What the old one computed is kept for when it comes back, and never served.

        Prompts under way are finished with the model they were opened for. What is shared is computed anew.

        :param coder: None: the old one; ``start`` as well
        """
        old = self._speaker
        speaker = Speaker(engine, coder or old.coder, old.start if start is None else tuple(start))
        for name, text in list(self._texts.items()):
            held = self._shared.get((name, engine.model_key))
            if held is None or not speaker.begins(held.told) or held.told.text != text:
                self._encode_shared(name, text, speaker)
        self.engine, self.coder, self.start, self._speaker = engine, speaker.coder, speaker.start, speaker

    def pin(self, agent: str, pinned: bool = True) -> None:
        """Keep an agent's rows in memory and on the disk, whatever the budgets, and however old."""
        with self._lock:
            self._pinned = self._pinned | {checked(agent)} if pinned else self._pinned - {checked(agent)}

    def forget(self, agent: str) -> bool:
        """Delete all an agent remembers, for every model; whether there was anything. A prompt under way is void: it
        cannot be finished.
        """
        with self._lock:
            self._leaving.add(checked(agent))
            keys = [(kept, key) for kept in (self._hot, self._under_way) for key in kept if key[0] == agent]
            for kept, key in keys:
                del kept[key]
        try:
            files = 0 if self._warm is None else self._warm.forget(agent)
            return bool(keys or files)
        finally:
            with self._lock:
                self._leaving.discard(agent)

    def flush(self, agents: Collection[str] | None = None) -> None:
        """Write what has changed, and wait until it is on the disk; of a prompt under way, what was before it.

        :param agents: whose; None: everybody's
        :raises Exception: what went wrong with a file of theirs, now or before; other files are written nevertheless
        """
        if self._warm is None:
            return
        with self._lock:
            failed = self._warm.failed
            for key, held in self._hot.items():
                if (held.changed or key in failed) and (agents is None or key[0] in agents):
                    self._write(key, held)
        self._warm.wait_for(agents)
        with self._lock:
            held = set(self._hot)
        self._warm.raise_failed(held, agents)

    def stats(self) -> dict[str, int]:
        """Agents and bytes in memory (shared rows once), bytes on the disk, files damaged, and files not written."""
        on_disk = 0 if self._warm is None else self._warm.nbytes
        failed = 0 if self._warm is None else len(self._warm.failed)
        with self._lock:
            hot = sum(self._hot.sizes(self._shared.values()).values()) + self._shared_bytes()
            return {
                "agents": len(self._hot), "bytes": hot, "disk_bytes": on_disk, "damaged": len(self.damaged),
                "failed": failed,
            }  # fmt: skip

    def close(self) -> None:
        """Write what has changed, and stop. Raises as `flush` does. May be called twice."""
        if self._warm is None or self._closed:
            return
        self._closed = True
        try:
            self.flush()
        finally:
            self._warm.close()

    def __enter__(self) -> AgentMemories:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # -- who may go on -------------------------------------------------------------------------------------------------

    def _claim(self, key: Key) -> object:
        """From here on the agent is busy."""
        with self._lock:
            if key in self._under_way:
                raise ConfigError(f"agent {key[0]!r} has a prompt under way: finish or abandon it before the next")
            if key[0] in self._leaving:
                raise ConfigError(f"agent {key[0]!r} is being forgotten: open the prompt again when that is done")
            self._expire()
            self._under_way[key] = token = object()
            return token

    def _pass_on(self, key: Key, old: object, new: object) -> None:
        """The agent stays busy, with something ``new``."""
        with self._lock:
            if self._under_way.get(key) is not old:
                raise ConfigError(
                    f"the prompt of agent {key[0]!r} is not under way: it was finished or abandoned, or the agent was "
                    "forgotten; open another"
                )
            self._under_way[key] = new

    def _release(self, key: Key, token: object) -> None:
        with self._lock:
            if self._under_way.get(key) is token:
                del self._under_way[key]

    # -- opening and finishing -----------------------------------------------------------------------------------------

    def _opened(self, key: Key, text: str, speaker: Speaker, token: object) -> AgentPrompt:
        held, origin = self._find(key, speaker, token)
        found = None if held is None else match(held.told, text, self.threshold, self.exact)
        if held is None or found is None or found.kind == "miss":
            held, found, origin = self._begin(key, text, speaker)
        told, kept = resume(held.told, found, speaker.coder)
        if not told.ids:
            raise ConfigError(f"agent {key[0]!r} says nothing: give a prompt with text")
        if len(told.ids) >= (limit := speaker.engine.info.max_positions):
            raise TooLongError(
                f"the prompt has {len(told.ids)} tokens, this model reads {limit - 1} before it speaks; shorten it"
            )
        if kept == 0:
            origin = "cold"
        cache = held.cache.fork() if kept else self._new_cache(speaker)
        if kept < cache.next_position:
            cache.cut(kept)
        return AgentPrompt(*key, cache, told, tuple(told.ids[kept:]), kept, found.kind, origin, speaker.coder)

    def _find(self, key: Key, speaker: Speaker, token: object) -> tuple[CacheEntry | None, str]:
        """The agent's own rows, in memory or from the disk."""
        with self._lock:
            held, origin = self._hot.get(key), "hot"
        if held is None and self._warm is not None:
            held, origin = self._load(key, speaker, token), "warm"
        return held if held is not None and speaker.begins(held.told) else None, origin

    def _load(self, key: Key, speaker: Speaker, token: object) -> CacheEntry | None:
        assert self._warm is not None
        found = self._warm.get(key, speaker.engine.info, speaker.engine.device)
        if found is None or found[0].format != self.format:
            return None
        held = CacheEntry(*found, self.clock())
        with self._lock:
            if self._under_way.get(key) is token:  # or it was forgotten meanwhile
                self._hot[key] = held
        return held

    def _begin(self, key: Key, text: str, speaker: Speaker) -> tuple[CacheEntry, Match, str]:
        """What is shared, if the text begins with it, or nothing."""
        shared = self._shared.get((self._behind.get(key[0], ""), key[1]))
        if shared is not None and speaker.begins(shared.told):
            found = match(shared.told, text, self.threshold, self.exact)
            if found.kept:
                return shared, found, "shared"
        none = CacheEntry(self._new_cache(speaker), TokenText.of("", speaker.coder, speaker.start), self.clock())
        return none, Match("miss", 0, 0, text), "cold"

    def _new_cache(self, speaker: Speaker) -> QuantizedCache:
        return QuantizedCache(speaker.engine.info, self.format, speaker.engine.device)

    def _told(self, prompt: AgentPrompt, generated: Sequence[int], text: str | None) -> CacheEntry:
        """What the rows of a prompt stand for; rows and tokens that do not agree are left out."""
        told, cache = prompt.told.first(len(prompt.told.ids)), prompt.cache
        if generated:
            told.extend(generated, prompt.coder, text)
        rows = match_tokens(told.ids, cache.tokens)
        cache.cut(rows)
        return CacheEntry(cache, told if rows == len(told.ids) else told.first(rows), self.clock(), changed=True)

    def _keep(self, key: Key, token: object, held: CacheEntry, persist: bool) -> None:
        with self._lock:
            if self._under_way.get(key) is not token:
                return  # forgotten meanwhile
            self._hot[key] = held
            self._hot.move_to_end(key)
            if persist:
                self._write(key, held)

    def _write(self, key: Key, held: CacheEntry) -> None:
        if self._warm is not None:
            held.changed = False
            self._warm.put(key, held.cache, held.told, held.used)

    # -- room ----------------------------------------------------------------------------------------------------------

    def _encode_shared(self, name: str, text: str, speaker: Speaker) -> None:
        told, cache = TokenText.of(text, speaker.coder, speaker.start), self._new_cache(speaker)
        speaker.engine.extend(cache, told.ids, ChunkSchedule())
        cache.freeze()
        with self._lock:
            self._shared[name, speaker.engine.model_key] = CacheEntry(cache, told, self.clock())

    def _shared_bytes(self) -> int:
        return sum(held.cache.nbytes for held in self._shared.values())

    def _make_room(self, own: Key) -> None:
        """Put the least recently used out of memory: first those above their quota, in the end the one at work."""
        room = Room(self.host_bytes, self.quota_bytes)
        if room.budget is None:
            return
        with self._lock:
            fixed, sizes = self._shared_bytes(), self._hot.sizes(self._shared.values())
            pinned = {key for key in sizes if key[0] in self._pinned}
            victims = room.victims(sizes, fixed, own, pinned | self._under_way.keys())
            failed = {} if self._warm is None else self._warm.failed
            for key in victims:
                held = self._hot.pop(key)
                if held.changed or key in failed:
                    self._write(key, held)
        if self._warm is not None and victims:
            self._warm.wait(*victims)  # until then their rows are still in memory
        small = {key for key, size in sizes.items() if size <= room.quota}
        room.check(fixed + sum(sizes[key] for key in (pinned | small).difference(victims)))

    def _expire(self) -> None:
        if self.ttl_seconds is None:
            return
        pinned = {key for key in self._hot if key[0] in self._pinned}
        late = self._hot.late(self.clock() - self.ttl_seconds, pinned | self._under_way.keys())
        for key in late:
            del self._hot[key]
        if late and self._warm is not None:
            self._warm.sweep()
