"""Options of the simulator's actions, with the names and defaults of its own Python client (2.3.0)."""

from __future__ import annotations

from dataclasses import dataclass

ROOMS = ("kitchen", "bedroom", "livingroom", "bathroom")  # start rooms of a character


@dataclass(frozen=True, slots=True)
class Expansion:
    """Options of changing a scene to a graph. ``random_seed`` below 0 draws a new one."""

    randomize: bool = False  # set by clients
    randomize_execution: bool = False  # read by the simulator
    random_seed: int = -1
    animate_character: bool = False
    ignore_obstacles: bool = False
    transfer_transform: bool = True  # new objects get the graph's transforms


@dataclass(frozen=True, slots=True)
class Script:
    """Options of a script; by default without recording and animations, as in LoTA-Bench's evaluation."""

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
    """Options of a camera image."""

    mode: str = "normal"  # seg_inst, seg_class, depth, flow, albedo, illumination, surf_normals
    image_width: int = 640  # pixels
    image_height: int = 480
