"""HTML export: an episode as one self-contained file with the player, steps and pictures."""

from __future__ import annotations

import gzip
import html
import json
from base64 import b64encode
from pathlib import Path
from string import Template

from keep_agent.errors import DataError
from keep_agent.files import refuse_folder
from keep_agent.viewer.runs import MEDIA_TYPES, Run, picture
from keep_agent.viewer.step_model import overview, step_json
from keep_agent.viewer.trace_index import EpisodeIndex
from memory.files.atomic import write_atomic

STATIC = Path(__file__).parents[1] / "static"
MODULE_PREFIX = "keep-viewer/"  # prefix of the modules' names in the exported file
PAGES_ONLY = ("step_view.js", "index.js")  # modules used only by the served pages
PAGE = Template("""\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>
body { margin: 0; }
$style
</style>
<script type="importmap">$imports</script>
<div id="player"><noscript>This page needs JavaScript.</noscript></div>
<script type="text/plain" id="steps">$steps</script>
<script type="module">
import { playEmbedded } from "${scope}embedded.js";
playEmbedded(document.getElementById("player"), "steps");
</script>
</html>
""")


def write_html(run: Run, episode: EpisodeIndex, path: Path) -> Path:
    """Write an episode's page to ``path``, and return it. Raises ConfigError for a folder, DataError for a bad step."""
    refuse_folder(path, "episode.html")
    write_atomic(path, page(run, episode))
    return path


def page(run: Run, episode: EpisodeIndex) -> str:
    """Return the HTML. Steps are compressed and base64-encoded, so that no text of a run is parsed as markup."""
    label = " · ".join(word for word in (run.method, episode.key, run.path.resolve().name) if word)
    return PAGE.substitute(
        title=html.escape(label),
        style=(STATIC / "viewer.css").read_text(encoding="utf-8"),
        imports=json.dumps({"imports": _modules()}),
        steps=_packed_steps(run, episode, label),
        scope=MODULE_PREFIX,
    )


def _packed_steps(run: Run, episode: EpisodeIndex, label: str) -> str:
    content = {
        "label": label,
        "overview": dict(overview(run, episode)),
        # one JSON text per step, parsed on demand
        "steps": [step_json(run, episode, number) for number in range(len(episode.positions))],
        "pictures": {number: _data_url(run, name) for number, name in episode.frames.items()},
    }
    raw = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
    return b64encode(gzip.compress(raw, mtime=0)).decode()


def _data_url(run: Run, name: str) -> str:
    """Encode a picture as a data URL; "" for a missing picture, which the page reports."""
    try:
        path = picture(run.path, name)
    except DataError:
        return ""
    return f"data:{MEDIA_TYPES[path.suffix]};base64,{b64encode(path.read_bytes()).decode()}"


def _modules() -> dict[str, str]:
    """Return the page's modules as data URLs, by import name."""
    modules = {}
    for file in sorted(STATIC.glob("*.js")):
        if file.name not in PAGES_ONLY:
            source = file.read_text(encoding="utf-8").replace('from "./', f'from "{MODULE_PREFIX}')
            modules[MODULE_PREFIX + file.name] = f"data:text/javascript;base64,{b64encode(source.encode()).decode()}"
    return modules
