"""Rerun export: an episode as a recording, with less detail than the web pages. Needs the extra `rerun`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from keep_agent.errors import ConfigError, DataError
from keep_agent.files import refuse_folder
from keep_agent.viewer.runs import Run, picture
from keep_agent.viewer.segments import STATES, SegmentView
from keep_agent.viewer.step_model import PromptView, StepView, step_view
from keep_agent.viewer.trace_index import EpisodeIndex
from memory.files.atomic import write_atomic

if TYPE_CHECKING:
    from rerun import RecordingStream

# RGB: colour of a layer that was not computed, then one colour for each of STATES
COLOURS = ((228, 237, 244), (156, 203, 232), (230, 159, 0), (176, 86, 156), (76, 89, 103))


def write_rrd(run: Run, episode: EpisodeIndex, path: Path) -> Path:
    """Write an episode's recording atomically, on the time line ``step``; return the path.

    :raises ConfigError: rerun-sdk is not installed, or ``path`` is a folder
    :raises DataError: for an episode with an invalid step
    """
    try:
        import rerun
    except ImportError:
        raise ConfigError(f"writing {path} needs rerun-sdk: pip install 'keep-agent[rerun]'") from None
    refuse_folder(path, "episode.rrd")
    recording = rerun.RecordingStream("keep_agent", recording_id=f"{run.path.resolve().name}/{episode.key}")
    stream = recording.binary_stream()
    for number in range(len(episode.positions)):
        recording.set_time("step", sequence=number)
        _log(recording, step_view(run, episode, number))
        if number in episode.frames:
            _log_picture(recording, run, episode.frames[number])
    content = stream.read()
    assert content is not None  # None only after the stream was shut down
    write_atomic(path, content)
    return path


def _log(recording: RecordingStream, view: StepView) -> None:
    import rerun

    level = rerun.TextLogLevel.INFO if view.ok else rerun.TextLogLevel.WARN
    recording.log("skills", rerun.TextLog(f"{view.skill} {view.message}".strip(), level=level))
    recording.log("step", rerun.TextDocument(_summary(view)))
    recording.log("world", rerun.TextDocument(_world_text(view)))
    if view.goal is not None:
        recording.log("goal/met", rerun.Scalars(view.goal[0]))
        recording.log("goal/asked", rerun.Scalars(view.goal[1]))
    if view.scores:
        recording.log("scores", rerun.BarChart([score for _, score in view.scores]))
    if view.prompt is not None:
        _log_prompt(recording, view.prompt)


def _log_prompt(recording: RecordingStream, prompt: PromptView) -> None:
    import rerun

    for name, value in (*prompt.parts, ("ttft", prompt.ttft_ms), ("score", prompt.score_ms)):
        recording.log(f"ms/{name}", rerun.Scalars(value))
    for state in STATES:
        recording.log(f"segments/{state}", rerun.Scalars(sum(segment.state == state for segment in prompt.segments)))
    recording.log("memory", rerun.TextDocument(_memory_text(prompt)))
    if prompt.active_rows and prompt.segments:
        recording.log("recomputation", rerun.Image(heat_map(prompt)))
        recording.log("active_rows", rerun.BarChart(list(prompt.active_rows)))
    edges = next((hop["edges"] for hop in prompt.hops if hop["edges"]), ())  # of the first layer with edges
    pairs = [(source or "query", target) for source, target, _ in edges]
    ids = list(dict.fromkeys(id for pair in pairs for id in pair))
    recording.log("hops", rerun.GraphNodes(ids, labels=ids), rerun.GraphEdges(pairs, graph_type="directed"))


def _log_picture(recording: RecordingStream, run: Run, name: str) -> None:
    import rerun

    try:
        recording.log("frame", rerun.EncodedImage(path=picture(run.path, name)))
    except DataError as error:
        recording.log("frame/missing", rerun.TextLog(str(error)))


def heat_map(prompt: PromptView) -> np.ndarray:
    """Return the recomputation as an image, uint8 (layers, segments, 3): a pixel per layer and segment."""
    layers = np.arange(len(prompt.active_rows))[:, None]
    last = np.array([segment.last_layer for segment in prompt.segments])[None, :]
    kinds = np.array([_colour(segment) for segment in prompt.segments])[None, :]
    return np.array(COLOURS, dtype=np.uint8)[np.where(layers <= last, kinds, 0)]


def _colour(segment: SegmentView) -> int:
    """Return the index in COLOURS for the computed layers of a segment; a hit has the colour of ``recomputed``."""
    return 1 + max(STATES.index(segment.state), 1)


def _summary(view: StepView) -> str:
    goal = f"{view.goal[0]} of {view.goal[1]}" if view.goal else "not in this trace"
    lines = [view.instruction, f"skill: {view.skill}", f"outcome: {'it worked' if view.ok else 'it failed'}"]
    lines += [f"feedback: {view.message or 'none'}", f"goal: {goal}"]
    return "\n".join([*lines, *(f"{score:9.3f}  {skill}" for skill, score in view.scores)])


def _world_text(view: StepView) -> str:
    things = [f"{'  ' * thing.depth}{thing.id} {' '.join(thing.states)}".rstrip() for thing in view.world.things]
    holds = ", ".join(view.world.holds) or "nothing"
    return "\n".join([f"agent at {view.world.agent or '?'}, holds {holds}", *things])


def _memory_text(prompt: PromptView) -> str:
    texts = [(view.state, view.key, view.text or "(not in the trace)") for view in prompt.segments]
    return "\n".join(f"{state:<10} {key}: {text.strip()}" for state, key, text in texts)
