"""MkDocs hooks, named in mkdocs.yml: they add files of the root folder, and a reference made from docstrings."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import gymnasium
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import keep_agent
from envs.worlds import register_worlds

ROOT = Path(__file__).resolve().parents[1]
BESIDE = {"README.md": "index.md"} | {name: name for name in ("CONTRIBUTING.md", "CHANGELOG.md", "LICENSE")}
TARGET = re.compile(r"^_target_: (\S+)", re.MULTILINE)
STAGES = ("retrieval", "construction", "recompute", "loading", "retention", "storage")
PAGES = {
    "agent": [
        *(f"keep_agent.{name}" for name in keep_agent.__all__ if not name.startswith("_")),
        "keep_agent.robots.executor.SkillExecutor",
        "keep_agent.robots.session.RobotSession",
        "keep_agent.errors",
    ],
    "memory": [
        "memory.session.MemorySession",
        "memory.method.MemoryMethod",
        "memory.segments.store.SegmentStore",
        "memory.segments.segment.Segment",
        "memory.kv_cache.block.KVBlock",
        "memory.prompt.report",
    ],
    "engine": ["memory.engine.models.load", "memory.engine.transformers.engine.TransformersEngine"],
    "planners": [
        "planners.base",
        "planners.kv_planner.KVPlanner",
        "planners.prompts.text",
        "planners.prompts.formats",
        "planners.tiny.checkpoint",
    ],
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the root folder's files in `BESIDE` and the pages of the reference to the files of docs/."""
    for name, place in BESIDE.items():
        files.append(File.generated(config, place, content=(ROOT / name).read_text(encoding="utf-8")))
    pages = {name: map(_entry, objects) for name, objects in PAGES.items()}
    pages |= {"worlds": _worlds(), "stages": _stages(), "commands": _commands()}
    for name, parts in pages.items():
        text = "\n\n".join([f"# {name.title()}", *parts])
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links between docs/ and the root folder, because the site has the files of both in one folder."""
    if "/" in page.file.src_uri:  # pages in subfolders of docs/ keep their links
        return markdown
    return markdown.replace("](docs/", "](").replace("](../", "](")


def _entry(name: str, level: int = 2, **options: bool) -> str:
    options = {"heading_level": level, **options}
    return "\n".join([f"::: {name}", "    options:", *(f"        {key}: {value}" for key, value in options.items())])


def _worlds() -> Iterator[str]:
    """Yield an entry for each environment of this project, and for the class and the module that all of them use."""
    register_worlds()
    for id, spec in gymnasium.registry.items():
        if str(spec.entry_point).startswith("envs."):
            yield f"## `keep_agent:{id}`"
            yield _entry(spec.entry_point.replace(":", "."), 3)
    yield from map(_entry, ("envs.household.HouseholdEnv", "envs.setting"))


def _stages() -> Iterator[str]:
    """Yield an entry for each memory stage's interface, and for the classes that configs/memory names for the stage."""
    yield from map(_entry, ("memory.stages.Capabilities", "memory.stages.Probe", "memory.prompt.layout"))
    for stage in STAGES:
        yield f"## {stage.title()}"
        module = "memory.construction.base" if stage == "construction" else "memory.stages"
        yield _entry(f"{module}.{stage.title()}", 3, show_if_no_docstring=True)
        for path in sorted((ROOT / "configs/memory" / stage).glob("*.yaml")):
            for name in TARGET.findall(path.read_text(encoding="utf-8")):
                yield _entry(name, 3, members=False)


def _commands() -> Iterator[str]:
    """Yield an entry for each console script."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for name, place in project["scripts"].items():
        yield f"## {name}"
        yield _entry(place.partition(":")[0], show_root_heading=False, show_root_toc_entry=False, members=False)
