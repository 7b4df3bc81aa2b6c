"""Merging of a run's shards: ``python -m eval.merge RUN RUN ... --out FOLDER``.

RUN is the folder of a shard (``eval.shard=i/n``), or a folder that contains such folders. All n shards must be given,
be finished, and have equal settings and weights. FOLDER gets the files of a single run; the shards stay unchanged.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from eval.common.options import command_parser
from eval.common.resume import FREE_KEYS, REQUIRED_KEYS, changed_settings
from eval.common.run import Shard, show, summary_of
from eval.common.variants import within
from keep_agent.console import make_console
from keep_agent.errors import ConfigError, DataError
from keep_agent.files import parsed, reading, unpacking
from keep_agent.guard import guarded
from keep_agent.rollout import run_folder
from keep_agent.rollout.frames import Frames
from keep_agent.rollout.results import EpisodeResult
from keep_agent.rollout.run_folder import RESTORE, SUMMARY, TRACE, RunFolder
from memory.files.atomic import create_folder

SHARD_KEYS = (*REQUIRED_KEYS, "episodes", "eval.seed", "eval.trace", "prompt.style")  # keys that a config must have
SUMMED_KEYS = ("episodes", "tasks", "crashed", "restarted_episodes", "steps")  # numbers that add up over shards
ByteSpan = tuple[int, int]  # range of bytes in a file


@dataclass(frozen=True)
class ShardRun:
    """One finished shard of a run."""

    path: Path
    config: dict[str, Any]
    shard: Shard
    results: list[EpisodeResult]
    summary: dict[str, Any]


def load_shard(path: Path) -> ShardRun:
    """Load a shard. Raises DataError for a run that is not a shard, or is not complete."""
    config = run_folder.read_config(path, SHARD_KEYS)
    if config["eval"].get("shard") is None:
        raise DataError(f"{path} is not a shard of a run: its eval.shard is null; give run folders of shards")
    with unpacking(path / run_folder.CONFIG, "not a config of a shard", RESTORE):
        shard = Shard.parse(config["eval"]["shard"])
        indices = shard.indices(config["episodes"])
    results = RunFolder.read(path)
    counts = Counter(result.index for result in results)
    missing = [index for index in indices if index not in counts]
    if missing or not (path / SUMMARY).exists():
        lacks = f" lacks {_episode_names(missing)} and" if missing else ""
        raise DataError(f"{path}, shard {shard},{lacks} is not finished; continue with eval.resume={path}")
    if repeated := [index for index, count in counts.items() if count > 1]:
        raise DataError(f"{path}, shard {shard}, has {_episode_names(repeated)} twice; play the shard again")
    if extra := sorted(counts.keys() - set(indices)):
        raise DataError(f"{path}, shard {shard}, has {_episode_names(extra)} of other shards; play the shard again")
    return ShardRun(path, config, shard, results, run_folder.read_summary(path))


def check_settings_equal(parts: Sequence[ShardRun]) -> None:
    """Raise DataError if settings, weights or numbers of episodes differ from the first shard's."""
    first = parts[0]
    for part in parts[1:]:
        changes = sorted(changed_settings(part.config, first.config).items())
        unequal = [f"{key}={change}" for key, change in changes if not within(key, (*FREE_KEYS, "eval.shard"))]
        if unequal:
            text = ", ".join(unequal)
            raise DataError(f"{part.path} is a shard of another run than {first.path}: {text}; merge shards of one run")
        if part.shard.total != first.shard.total:
            raise DataError(
                f"{part.path} is shard {part.shard}, but {first.path} is {first.shard}; merge shards of one run"
            )


def check_complete(parts: Sequence[ShardRun]) -> None:
    """Raise DataError unless each shard, and so each episode, occurs exactly once."""
    places: dict[int, list[str]] = defaultdict(list)
    for part in parts:
        places[part.shard.number].append(str(part.path))
    total = parts[0].shard.total
    if repeated := [f"{number}/{total} ({', '.join(paths)})" for number, paths in places.items() if len(paths) > 1]:
        raise DataError(f"shards are given twice: {'; '.join(repeated)}; leave out all but one of each")
    if missing := [f"{number}/{total}" for number in range(total) if number not in places]:
        raise DataError(f"shards are missing: {', '.join(missing)}; give their run folders too")
    ids = Counter(result.id for part in parts for result in part.results)
    if same := [name for name, count in ids.items() if count > 1]:
        raise DataError(
            f"several shards have played {same[0]}: their data differ; play them again on the same env.data"
        )


def merge(parts: Sequence[ShardRun], out: Path, console: Console) -> dict[str, Any]:
    """Write the run of all parts to ``out`` atomically; return its summary."""
    parts = sorted(parts, key=lambda part: part.shard.number)
    check_settings_equal(parts)
    check_complete(parts)
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise ConfigError(f"--out {out} already exists; name a new folder")
    config = {**parts[0].config, "eval": {**parts[0].config["eval"], "shard": None}}
    pairs = sorted(((result, part) for part in parts for result in part.results), key=lambda pair: pair[0].index)
    results = [result for result, _ in pairs]
    summary = summary_of(results, config, _versions(parts))
    _check_totals(summary, parts)
    traces = {part.shard: entry_spans(part.path / TRACE) for part in parts}
    with create_folder(out) as folder, RunFolder.create(folder, config) as run:
        for result, part in pairs:
            has_trace = config["eval"]["trace"]
            entries = _entries(part.path / TRACE, result.id, traces[part.shard]) if has_trace else ()
            frames = Frames(result.id)
            pictures = sorted((part.path / frames.folder).glob("*"))
            frames.files.update({file.name: file.read_bytes() for file in pictures})
            run.commit(result, entries, frames)
        run.write_summary(summary)
    show(summary, results, out, console)
    return summary


def entry_spans(trace: Path) -> dict[str, list[ByteSpan]]:
    """Return the byte spans of a trace's lines by episode id. Raises DataError for a damaged trace."""
    places: dict[str, list[ByteSpan]] = defaultdict(list)
    start = 0
    for line in run_folder.trace_lines(trace):
        if not isinstance(line.value.get("episode"), str):
            raise DataError(f"{trace}:{line.number} is not an entry of a trace (it names no episode); {RESTORE}")
        places[line.value["episode"]].append((start, line.end))
        start = line.end
    return places


def _entries(trace: Path, episode: str, places: Mapping[str, Sequence[ByteSpan]]) -> Iterator[dict[str, Any]]:
    if episode not in places:
        raise DataError(f"{trace} has no entry of episode {episode}; play the shard again")
    with reading(trace), trace.open("rb") as stream:
        for start, end in places[episode]:
            stream.seek(start)
            entry = parsed(stream.read(end - start), trace, RESTORE)
            entry.pop("sum", None)  # the merged trace gets new checksums
            yield entry


def _versions(parts: Sequence[ShardRun]) -> dict[str, str]:
    versions_by_name: dict[str, set[str]] = defaultdict(set)
    for part in parts:
        with unpacking(part.path / SUMMARY, "not a summary of a run", RESTORE):
            for name, version in part.summary["versions"].items():
                versions_by_name[name].add(version)
    return {name: ", ".join(sorted(versions)) for name, versions in versions_by_name.items()}


def _check_totals(summary: Mapping[str, Any], parts: Sequence[ShardRun]) -> None:
    for key in SUMMED_KEYS:
        expected = 0
        for part in parts:
            with unpacking(part.path / SUMMARY, "not a summary of a run", RESTORE):
                expected += int(part.summary[key])
        if summary[key] != expected:
            raise DataError(
                f"there are {summary[key]} {key}, but the shards' {SUMMARY} say {expected}: a file has changed since "
                "it was written; restore it, or play its shard again"
            )


def _episode_names(indices: Iterable[int]) -> str:
    words = [str(index) for index in indices]
    text = ", ".join(words[:10]) + (f" and {len(words) - 10} more" if len(words) > 10 else "")
    return f"episode{'s' if len(words) > 1 else ''} {text}"


def main() -> None:
    p = command_parser(__doc__, "keep-eval-merge")
    runs = "folder of a shard, or a folder that contains shards"
    p.add_argument("runs", nargs="+", type=Path, metavar="RUN", help=runs)
    p.add_argument("--out", required=True, type=Path, metavar="FOLDER", help="the run folder to write")
    arguments = p.parse_args()

    def run() -> None:
        folders = dict.fromkeys(folder.resolve() for path in arguments.runs for folder in run_folder.find_runs(path))
        merge([load_shard(folder) for folder in folders], arguments.out.absolute(), make_console())

    sys.exit(guarded(run))


if __name__ == "__main__":
    main()
