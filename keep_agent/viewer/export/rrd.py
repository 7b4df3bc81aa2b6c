"""An episode as a recording for Rerun's viewer. Needs the extra `rerun`; what it shows is less than the pages do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from keep_agent.errors import ConfigError, DataError
from keep_agent.files import refuse_folder
from keep_agent.viewer.pictures import picture
from keep_agent.viewer.runs import Run
from keep_agent.viewer.segments import STATES, SegmentView
from keep_agent.viewer.step_model import PromptView, StepView, step_view
from keep_agent.viewer.trace_index import EpisodeIndex
from memory.files.atomic import write_atomic

if TYPE_CHECKING:
    from rerun import RecordingStream

COLOURS = ((228, 237, 244), (156, 203, 232), (230, 159, 0), (176, 86, 156), (76, 89, 103))  # from memory, then STATES


def write_rrd(run: Run, episode: EpisodeIndex, path: Path) -> Path:
    """Write an episode's recording, on the time line ``step``, whole or not at all; the path.

    Raises ConfigError without rerun-sdk or for a folder, DataError for an episode that cannot be shown.
    """
    try:
        import rerun
    except ImportError:
        raise ConfigError(f"writing {path} needs rerun-sdk: pip install 'keep-agent[rerun]'") from None
    refuse_folder(path, "episode.rrd")
    recording = rerun.RecordingStream("keep_agent", recording_id=f"{run.path.resolve().name}/{episode.key}")
    stream = recording.binary_stream()
    for number in range(len(episode.places)):
        recording.set_time("step", sequence=number)
        _log(recording, step_view(run, episode, number))
        _log_picture(recording, run, episode.frames.get(number))
    content = stream.read()
    assert content is not None  # which it is for a stream that nobody has shut down
    write_atomic(path, content)
    return path


def _log(recording: RecordingStream, view: StepView) -> None:
    import rerun

    level = rerun.TextLogLevel.INFO if view.ok else rerun.TextLogLevel.WARN
    recording.log("skills", rerun.TextLog(f"{view.skill} {view.message}".strip(), level=level))
    recording.log("step", rerun.TextDocument(_told(view)))
    recording.log("world", rerun.TextDocument(_tree(view)))
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
        recording.log(f"segments/{state}", rerun.Scalars(sum(one.state == state for one in prompt.segments)))
    recording.log("memory", rerun.TextDocument(_table(prompt)))
    if prompt.active_rows and prompt.segments:
        recording.log("recomputation", rerun.Image(heat_map(prompt)))
        recording.log("active_rows", rerun.BarChart(list(prompt.active_rows)))
    _log_hops(recording, prompt)


def _log_hops(recording: RecordingStream, prompt: PromptView) -> None:
    """The path of the first layer that chose; the graph is empty where none did."""
    import rerun

    edges = next((hop["edges"] for hop in prompt.hops if hop["edges"]), ())
    named = [(source or "query", target) for source, target, _ in edges]
    ids = list(dict.fromkeys(id for edge in named for id in edge))
    recording.log("hops", rerun.GraphNodes(ids, labels=ids), rerun.GraphEdges(named, graph_type="directed"))


def _log_picture(recording: RecordingStream, run: Run, name: str | None) -> None:
    import rerun

    if name is None:
        return
    try:
        recording.log("frame", rerun.EncodedImage(path=picture(run.path, name)))
    except DataError as error:
        recording.log("frame/missing", rerun.TextLog(str(error)))


def heat_map(prompt: PromptView) -> np.ndarray:
    """What was computed, uint8 (layers, segments, 3): a pixel per layer and segment."""
    layers = np.arange(len(prompt.active_rows))[:, None]
    last = np.array([segment.last_layer for segment in prompt.segments])[None, :]
    kinds = np.array([_colour(segment) for segment in prompt.segments])[None, :]
    return np.array(COLOURS, dtype=np.uint8)[np.where(layers <= last, kinds, 0)]


def _colour(segment: SegmentView) -> int:
    """Of its computed layers. A hit was computed at layer 0 at most: in the colour of what is recomputed."""
    return 1 + max(STATES.index(segment.state), 1)


def _told(view: StepView) -> str:
    goal = f"{view.goal[0]} of {view.goal[1]}" if view.goal else "not in this trace"
    lines: list[Any] = [
        view.instruction,
        f"skill: {view.skill}",
        f"outcome: {'it worked' if view.ok else 'it failed'}",
        f"feedback: {view.message or 'none'}",
        f"goal: {goal}",
    ]
    return "\n".join([*lines, *(f"{score:9.3f}  {skill}" for skill, score in view.scores)])


def _tree(view: StepView) -> str:
    things = [f"{'  ' * one.depth}{one.id} {' '.join(one.states)}".rstrip() for one in view.world.things]
    holds = ", ".join(view.world.holds) or "nothing"
    return "\n".join([f"agent at {view.world.agent or '?'}, holds {holds}", *things])


def _table(prompt: PromptView) -> str:
    rows = [f"{one.state:<10} {one.key}: {(one.text or '(not in the trace)').strip()}" for one in prompt.segments]
    return "\n".join(rows)
