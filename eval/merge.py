"""The shards of a run made one run: ``python -m eval.merge RUN RUN ... --out FOLDER``.

A RUN is the folder of a shard (``eval.shard=i/n``), or one that holds some. All n must be there, each finished, with
equal settings and weights. FOLDER is then what a single run would have written; the shards stay as they are.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from eval.common.accepted_overrides import within
from eval.common.resume import FREE_KEYS, REQUIRED_KEYS, changed_settings
from eval.common.run import show, summary_of
from eval.common.shard import Shard
from keep_agent.console import make_console
from keep_agent.errors import ConfigError, DataError
from keep_agent.files import parsed, reading, unpacking
from keep_agent.guard import guarded
from keep_agent.rollout.frames import Frames
from keep_agent.rollout.results import EpisodeResult
from keep_agent.rollout.run_folder import (
    AGAIN,
    CONFIG,
    SUMMARY,
    TRACE,
    RunFolder,
    find_runs,
    read_config,
    read_summary,
    trace_lines,
)
from memory.files.atomic import appearing

SHARD_KEYS = (
    *REQUIRED_KEYS,
    "episodes",
    "eval.seed",
    "eval.trace",
    "prompt.style",
)  # of a shard's config: what its run tells
SUMMED_KEYS = ("episodes", "tasks", "crashed", "restarted_episodes", "steps")  # of a summary
Span = tuple[int, int]  # of bytes in a file


@dataclass(frozen=True)
class Part:
    """One shard of a run, finished, with just the episodes that are its own."""

    path: Path
    config: dict[str, Any]
    shard: Shard
    results: list[EpisodeResult]
    summary: dict[str, Any]


def load_part(path: Path) -> Part:
    """Raises DataError for a run that is no shard, or is not whole."""
    config = read_config(path, SHARD_KEYS)
    if config["eval"].get("shard") is None:
        raise DataError(f"{path} is no shard of a run: its eval.shard is null; give those that have one")
    with unpacking(path / CONFIG, "no config of a shard", AGAIN):
        shard = Shard.parse(config["eval"]["shard"])
        own = shard.indices(config["episodes"])
    results = RunFolder.read(path)
    counts = Counter(result.index for result in results)
    missing = [index for index in own if index not in counts]
    if missing or not (path / SUMMARY).exists():
        lacks = f" lacks {_numbers(missing)} and" if missing else ""
        raise DataError(f"{path}, shard {shard},{lacks} is not finished; go on with eval.resume={path}")
    if twice := [index for index, count in counts.items() if count > 1]:
        raise DataError(f"{path}, shard {shard}, has {_numbers(twice)} twice; play it anew")
    if foreign := sorted(counts.keys() - set(own)):
        raise DataError(f"{path}, shard {shard}, has {_numbers(foreign)} of other shards; play it anew")
    return Part(path, config, shard, results, read_summary(path))


def check_alike(parts: Sequence[Part]) -> None:
    """Raises DataError unless all were played with the settings, weights and numbers of episodes of the first."""
    first = parts[0]
    for part in parts[1:]:
        found = changed_settings(part.config, first.config)
        unequal = sorted(key for key in found if not within(key, (*FREE_KEYS, "eval.shard")))
        if unequal:
            shown = ", ".join(f"{key}={found[key]}" for key in unequal)
            raise DataError(f"{part.path} is a shard of another run than {first.path}: {shown}")
        if part.shard.of != first.shard.of:
            raise DataError(f"{part.path} is shard {part.shard}, but {first.path} is {first.shard}")


def check_complete(parts: Sequence[Part]) -> None:
    """Raises DataError unless each shard, and so each episode, is there just once."""
    places: dict[int, list[str]] = defaultdict(list)
    for part in parts:
        places[part.shard.number].append(str(part.path))
    of = parts[0].shard.of
    if twice := [f"{number}/{of} ({', '.join(paths)})" for number, paths in places.items() if len(paths) > 1]:
        raise DataError(f"shards are given twice: {'; '.join(twice)}; leave out all but one of each")
    if missing := [f"{number}/{of}" for number in range(of) if number not in places]:
        raise DataError(f"shards are missing: {', '.join(missing)}; give their run folders too")
    ids = Counter(result.id for part in parts for result in part.results)
    if same := [name for name, count in ids.items() if count > 1]:
        raise DataError(f"several shards have played {same[0]}: their data differ; play them on the same env.data")


def merge(parts: Sequence[Part], out: Path, console: Console) -> dict[str, Any]:
    """Write the run that the parts are shares of to ``out``, whole or not at all; returns its summary."""
    parts = sorted(parts, key=lambda part: part.shard.number)
    check_alike(parts)
    check_complete(parts)
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise ConfigError(f"--out {out} is there already; name a new folder")
    config = {**parts[0].config, "eval": {**parts[0].config["eval"], "shard": None}}
    played = sorted(((result, part) for part in parts for result in part.results), key=lambda pair: pair[0].index)
    results = [result for result, _ in played]
    summary = summary_of(results, config, _versions(parts))
    _check_sums(summary, parts)
    traces = {part.shard: spans(part.path / TRACE) for part in parts}
    with appearing(out) as folder, RunFolder.create(folder, config) as run:
        for result, part in played:
            entries = ()
            if config["eval"]["trace"]:
                entries = _entries(part.path / TRACE, result.id, traces[part.shard])
            run.commit(result, entries, _frames(part.path, result.id))
        run.write_summary(summary)
    show(summary, results, out, console)
    return summary


def spans(trace: Path) -> dict[str, list[Span]]:
    """Places of the lines of each episode in a trace; none if there is none. Raises DataError for a damaged one."""
    found: dict[str, list[Span]] = defaultdict(list)
    start = 0
    for line in trace_lines(trace):
        if not isinstance(line.value.get("episode"), str):
            raise DataError(f"{trace}:{line.number} is no entry of a trace (it names no episode); {AGAIN}")
        found[line.value["episode"]].append((start, line.end))
        start = line.end
    return found


def _entries(trace: Path, episode: str, places: Mapping[str, Sequence[Span]]) -> Iterator[dict[str, Any]]:
    if episode not in places:
        raise DataError(f"{trace} has nothing of episode {episode}; play the shard anew")
    with reading(trace), trace.open("rb") as stream:
        for start, end in places[episode]:
            stream.seek(start)
            entry = parsed(stream.read(end - start), trace, AGAIN)
            entry.pop("sum", None)  # it gets another
            yield entry


def _frames(run: Path, episode: str) -> Frames:
    """The pictures of an episode; empty if there are none."""
    frames = Frames(episode)
    frames.files.update({file.name: file.read_bytes() for file in sorted((run / frames.folder).glob("*"))})
    return frames


def _versions(parts: Sequence[Part]) -> dict[str, str]:
    """Of what the numbers depend on; several, where the shards were played with several."""
    found: dict[str, set[str]] = defaultdict(set)
    for part in parts:
        with unpacking(part.path / SUMMARY, "no summary of a run", AGAIN):
            for name, version in part.summary["versions"].items():
                found[name].add(version)
    return {name: ", ".join(sorted(versions)) for name, versions in found.items()}


def _check_sums(summary: Mapping[str, Any], parts: Sequence[Part]) -> None:
    """Raises DataError unless the shards' own summaries add up to the one of all."""
    for key in SUMMED_KEYS:
        told = sum(_summary_value(part, key) for part in parts)
        if summary[key] != told:
            raise DataError(
                f"there are {summary[key]} {key}, but the shards' {SUMMARY} say {told}: a file has changed since it "
                "was written; play that shard anew"
            )


def _summary_value(part: Part, key: str) -> int:
    with unpacking(part.path / SUMMARY, "no summary of a run", AGAIN):
        return int(part.summary[key])


def _numbers(indices: Iterable[int]) -> str:
    listed = [str(index) for index in indices]
    shown = ", ".join(listed[:10]) + (f" and {len(listed) - 10} more" if len(listed) > 10 else "")
    return f"episode{'s' if len(listed) > 1 else ''} {shown}"


def parser() -> argparse.ArgumentParser:
    described = argparse.ArgumentParser(
        prog="keep-eval-merge", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    described.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a shard's folder, or one that holds some")
    described.add_argument("--out", required=True, type=Path, metavar="FOLDER", help="the run folder to write")
    return described


def main() -> None:
    arguments = parser().parse_args()

    def merged() -> None:
        folders = dict.fromkeys(folder.resolve() for path in arguments.runs for folder in find_runs(path))
        merge([load_part(folder) for folder in folders], arguments.out.absolute(), make_console())

    sys.exit(guarded(merged))


if __name__ == "__main__":
    main()
