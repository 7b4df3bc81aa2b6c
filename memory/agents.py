"""The memories of many agents: each its own rows, hot in memory or warm on a disk, matched by text (Semantic)."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType

from keep_agent.errors import CapacityError, ConfigError, CorruptError, DataError
from memory.disk import agents as disk
from memory.disk.packed_file import header_of, restore, tensors_of
from memory.engine.engine import Engine
from memory.engine.packed import PackedCache
from memory.match import Coder, Exact, Kind, TokenText, match, resume
from memory.quantize import PackFormat

logger = logging.getLogger(__name__)

Key = tuple[str, str]  # agent and model


@dataclass
class Held:
    """One agent's rows for one model, and the text they stand for."""

    cache: PackedCache
    told: TokenText
    used: float
    changed: bool = False  # since it was written to the disk
    busy: bool = False  # a prompt is under way


@dataclass(frozen=True)
class Prompt:
    """A prompt that is ready to be computed: behind the ``kept`` rows of ``cache`` come ``new`` tokens."""

    agent: str
    cache: PackedCache
    told: TokenText
    new: tuple[int, ...]
    kept: int
    kind: Kind
    origin: str  # hot | warm | shared | cold: where the rows were


@dataclass
class AgentMemories:
    """Opens agents' memories, and puts them away again.

    An agent sees its own rows only, and a shared beginning that was declared by `share`. Agents' requests are made one
    after another: a prompt has to be finished before the agent's next one. Rows go to ``folder`` (None: they are lost
    with the process) when they are persisted, or when the least recently used have to leave memory.

    :param host_bytes: of rows in memory; None: no limit
    :param quota_bytes: an agent that holds no more than this is not put out of memory by others
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
    clock: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        self._held: OrderedDict[Key, Held] = OrderedDict()
        self._shared: dict[Key, Held] = {}
        self._behind: dict[str, str] = {}  # agent -> shared beginning
        self._pinned: set[str] = set()
        self._lock = threading.RLock()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="persist")
        self._writing: dict[Key, Future[None]] = {}
        self.damaged: list[str] = []  # files that were found damaged and are ignored
        if self.folder is not None:
            disk.clean(self.folder)

    # -- prompts -------------------------------------------------------------------------------------------------------

    def open(self, agent: str, text: str) -> Prompt:
        """What of ``text`` the agent's memory already holds, and what is to be computed behind it.

        :raises ConfigError: an agent id that is no safe name, or one whose last prompt is not finished
        """
        with self._lock:
            held, origin = self._find(agent)
            if held.busy:
                raise ConfigError(f"agent {agent!r} has a prompt under way: finish it before the next")
            found = match(held.told, text, self.threshold, self.exact)
            told, kept = resume(held.told, found, self.coder)
            if not told.ids:
                raise ConfigError(f"agent {agent!r} says nothing: give a prompt with text")
            held.cache.cut(kept)
            held.busy, held.changed, held.told = True, True, told.first(kept)
            if kept == 0 and origin != "cold":
                origin = "cold"
            return Prompt(agent, held.cache, told, tuple(told.ids[kept:]), kept, found.kind, origin)

    def finish(self, prompt: Prompt, generated: Sequence[int] = (), persist: bool = True) -> None:
        """The prompt was computed, and ``generated`` tokens behind it: they are the agent's memory now.

        What was not computed after all (a cancelled request) is left out, by the length of the cache.
        """
        with self._lock:
            key = prompt.agent, self.engine.model_key
            held = self._held[key]
            told = prompt.told
            told.extend(generated, self.coder)
            held.told = told if len(told.ids) == held.cache.next_position else told.first(held.cache.next_position)
            held.cache.cut(len(held.told.ids))
            held.busy, held.used = False, self.clock()
            self._held.move_to_end(key)
            if persist and self.folder is not None:
                self._write(key, held)
            self._make_room(key)

    # -- what rests ----------------------------------------------------------------------------------------------------

    def share(self, name: str, text: str) -> None:
        """Declare a beginning that agents may share: it is computed once, read-only, and no agent's own."""
        told = TokenText.of(text, self.coder, self.start)
        cache = self._new_cache()
        self.engine.extend(cache, told.ids)
        cache.freeze()
        with self._lock:
            self._shared[name, self.engine.model_key] = Held(cache, told, self.clock())

    def behind(self, agent: str, name: str) -> None:
        """Let an agent without a memory of its own begin with what is shared under ``name``.

        :raises ConfigError: nothing is shared under this name
        """
        if (name, self.engine.model_key) not in self._shared:
            known = ", ".join(sorted({shared for shared, _ in self._shared})) or "nothing"
            raise ConfigError(f"nothing is shared as {name!r}; shared is: {known}")
        self._behind[agent] = name

    def use(self, engine: Engine) -> None:
        """Go on with another model. What the old one computed is kept for when it comes back, and never served."""
        with self._lock:
            self.engine = engine

    def pin(self, agent: str, pinned: bool = True) -> None:
        """Keep an agent's rows in memory and on the disk, whatever the budgets."""
        (self._pinned.add if pinned else self._pinned.discard)(agent)

    def forget(self, agent: str) -> None:
        """Delete all an agent remembers, for every model."""
        with self._lock:
            for key in [key for key in self._held if key[0] == agent]:
                self._settle(key)
                del self._held[key]
            if self.folder is not None:
                disk.forget(self.folder, agent)

    def flush(self) -> None:
        """Write what has changed, and wait until it is on the disk."""
        with self._lock:
            for key, held in self._held.items():
                if held.changed and not held.busy and self.folder is not None:
                    self._write(key, held)
            for key in list(self._writing):
                self._settle(key)

    def stats(self) -> dict[str, int]:
        """agents and bytes in memory, bytes on the disk, damaged files that were ignored."""
        with self._lock:
            on_disk = disk.total_bytes(self.folder) if self.folder is not None else 0
            hot = sum(held.cache.nbytes for held in self._held.values())
            return {"agents": len(self._held), "bytes": hot, "disk_bytes": on_disk, "damaged": len(self.damaged)}

    def close(self) -> None:
        """Write what has changed, and stop."""
        self.flush()
        self._writer.shutdown()

    def __enter__(self) -> AgentMemories:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # -- inside --------------------------------------------------------------------------------------------------------

    def _find(self, agent: str) -> tuple[Held, str]:
        key = agent, self.engine.model_key
        disk.agent_path(Path(), *key)  # whether the id is a safe name
        self._expire()
        held, origin = self._held.get(key), "hot"
        if held is None:
            held, origin = self._load(key), "warm"
        if held is None:
            held, origin = self._begin(key)
        self._held[key] = held
        self._held.move_to_end(key)
        held.used = self.clock()
        return held, origin

    def _begin(self, key: Key) -> tuple[Held, str]:
        name = self._behind.get(key[0])
        shared = None if name is None else self._shared.get((name, key[1]))
        if shared is None:
            return Held(self._new_cache(), TokenText(self.coder.seams, self.start), self.clock()), "cold"
        return Held(shared.cache.fork(), shared.told.first(len(shared.told.ids)), self.clock()), "shared"

    def _new_cache(self) -> PackedCache:
        return PackedCache(self.engine.spec, self.format, self.engine.decoder.device)

    def _load(self, key: Key) -> Held | None:
        """From the disk, if there is a sound file of this format. A damaged one is reported and ignored."""
        if self.folder is None or not disk.agent_path(self.folder, *key).exists():
            return None
        try:
            file = disk.open_agent(self.folder, *key)
            if self.ttl_seconds is not None and self.clock() - float(file.header["at"]) > self.ttl_seconds:
                return None
            cache = restore(file, self.engine.spec, self.engine.decoder.device)
            file.verify()
            told = TokenText.from_json({**file.header["told"], "ids": cache.tokens})
        except (CorruptError, DataError) as error:
            self.damaged.append(str(error))
            logger.warning("the memory of agent %r cannot be used and is computed anew: %s", key[0], error)
            return None
        return Held(cache, told, self.clock()) if cache.format == self.format else None

    def _write(self, key: Key, held: Held) -> None:
        """Take a snapshot now, write it in the background; a later one waits for it."""
        self._settle(key)
        tensors, extra = tensors_of(held.cache)
        told = {name: value for name, value in held.told.to_json().items() if name != "ids"}
        header = {**header_of(held.cache), "told": told, "at": self.clock()}
        held.changed = False
        save = partial(disk.save_agent, self.folder, *key, held.cache.next_position, tensors, header, extra)
        self._writing[key] = self._writer.submit(self._save, save)

    def _save(self, save: Callable[[], Path]) -> None:
        save()
        if self.disk_bytes is not None:
            disk.evict(self.folder, self.disk_bytes, self._pinned)

    def _settle(self, key: Key) -> None:
        """Wait for an agent's file; what went wrong with it is raised here."""
        writing = self._writing.pop(key, None)
        if writing is not None:
            writing.result()

    def _make_room(self, own: Key) -> None:
        """Put the least recently used out of memory: first those above their quota, in the end the one at work."""
        if self.host_bytes is None:
            return
        sizes = {key: held.cache.nbytes for key, held in self._held.items()}
        free = [key for key, held in self._held.items() if not held.busy and key[0] not in self._pinned]
        others = [key for key in free if key != own and sizes[key] > self.quota_bytes]
        for key in [*others, *([own] if own in free else [])]:
            if sum(sizes.values()) <= self.host_bytes:
                return
            if self._held[key].changed and self.folder is not None:
                self._write(key, self._held[key])
            self._settle(key)
            del self._held[key], sizes[key]
        if sum(sizes.values()) > self.host_bytes:
            raise CapacityError(
                f"{sum(sizes.values())} bytes are pinned or within their quota, but host_bytes={self.host_bytes}: "
                "raise it, lower quota_bytes, or unpin agents"
            )

    def _expire(self) -> None:
        if self.ttl_seconds is None:
            return
        late = self.clock() - self.ttl_seconds
        for key in [key for key, held in self._held.items() if held.used < late and key[0] not in self._pinned]:
            if not self._held[key].busy:
                self._settle(key)
                del self._held[key]
                if self.folder is not None:
                    disk.forget(self.folder, *key)
