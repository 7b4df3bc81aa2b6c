"""The settings an action takes as JSON, with the names and defaults of the simulator's own Python client (2.3.0)."""

from __future__ import annotations

from dataclasses import dataclass

ROOMS = ("kitchen", "bedroom", "livingroom", "bathroom")  # a character may start in


@dataclass(frozen=True, slots=True)
class Expansion:
    """How a scene is changed to a graph. ``random_seed`` below 0 draws a new one."""

    randomize: bool = False  # clients say so,
    randomize_execution: bool = False  # the simulator looks here
    random_seed: int = -1
    animate_character: bool = False
    ignore_obstacles: bool = False
    transfer_transform: bool = True  # new objects stand where the graph says


@dataclass(frozen=True, slots=True)
class Script:
    """How a script runs. Without recording or animations, as LoTA-Bench's evaluation does."""

    randomize_execution: bool = False
    random_seed: int = -1
    processing_time_limit: int = 10  # seconds, to find a solution
    skip_execution: bool = False
    find_solution: bool = False  # choose other instances than the script's ids
    output_folder: str = "Output/"
    file_name_prefix: str = "script"
    frame_rate: int = 5  # per second
    image_synthesis: tuple[str, ...] = ("normal",)
    save_pose_data: bool = False
    save_scene_states: bool = False
    camera_mode: tuple[str, ...] = ("AUTO",)
    recording: bool = False
    image_width: int = 640  # pixels
    image_height: int = 480
    time_scale: float = 1.0
    skip_animation: bool = True


@dataclass(frozen=True, slots=True)
class Picture:
    """How a camera renders."""

    mode: str = "normal"  # seg_inst, seg_class, depth, flow, albedo, illumination, surf_normals
    image_width: int = 640  # pixels
    image_height: int = 480
