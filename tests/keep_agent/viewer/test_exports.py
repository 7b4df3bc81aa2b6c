from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from base64 import b64decode
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from keep_agent.errors import ConfigError, DataError
from keep_agent.viewer.export.html import page, write_html
from keep_agent.viewer.export.rrd import COLOURS, heat_map, write_rrd
from keep_agent.viewer.step_model import step_view
from tests.keep_agent.viewer.traces import EVIL, first, opening, run_of, step, write, write_hostile


def content(text: str) -> dict:
    packed = re.search(r'<script type="text/plain" id="steps">(.*?)</script>', text, re.DOTALL)
    assert packed
    return json.loads(gzip.decompress(b64decode(packed[1])))


def test_page_holds_every_step(keep_run: Path, tmp_path: Path) -> None:
    run = run_of(keep_run)
    exported = content(write_html(run, first(run), tmp_path / "new" / "page.html").read_text(encoding="utf-8"))
    views = [step_view(run, first(run), number).to_json() for number in range(len(first(run).positions))]
    assert exported["steps"] == views and len(exported["overview"]["outlines"]) == len(views)


def test_page_holds_its_pictures(random_run: Path) -> None:
    run = run_of(random_run)
    pictures = content(page(run, first(run)))["pictures"]
    assert set(pictures) == {str(number) for number in first(run).frames}
    assert all(b64decode(url.partition(",")[2]).startswith(b"\x89PNG") for url in pictures.values())


def test_page_loads_nothing_else(keep_run: Path) -> None:
    text = page(run_of(keep_run), first(run_of(keep_run)))
    modules = json.loads(re.search(r'<script type="importmap">(.*?)</script>', text)[1])["imports"]  # type: ignore[index]
    sources = [b64decode(url.partition(",")[2]).decode() for url in modules.values()]
    assert not re.findall(r"""(?:src|href|url|@import)\s*[=(]\s*["']?(?!data:)\w+:""", text)
    namespace = "http://www.w3.org/2000/svg"
    assert all("://" not in source.replace(namespace, "") for source in [text, *sources])
    imported = {name for source in sources for name in re.findall(r'from "([^"]+)"', source)}
    assert imported <= set(modules), "the page holds every imported module"
    assert "keep-viewer/embedded.js" in modules


def test_texts_of_a_run_are_no_markup(tmp_path: Path) -> None:
    run = run_of(write_hostile(tmp_path))
    text = page(run, first(run))
    assert EVIL not in text and "<img" not in text
    assert content(text)["overview"]["episode"] == EVIL


def test_missing_and_foreign_pictures_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "secret.png").write_bytes(b"secret")
    run = run_of(write(tmp_path / "run", [opening(frame="../secret.png"), step(frame="frames/e/0001.png")]))
    assert content(page(run, first(run)))["pictures"] == {"-1": "", "0": ""}


def test_recording_holds_the_steps(random_run: Path, keep_run: Path, tmp_path: Path) -> None:
    pytest.importorskip("rerun")
    for path, entities in ((random_run, {"/skills", "/frame"}), (keep_run, {"/memory", "/recomputation", "/hops"})):
        run = run_of(path)
        file = write_rrd(run, first(run), tmp_path / "deep" / f"{path.name}.rrd")
        command = [sys.executable, "-m", "rerun", "rrd", "stats", str(file)]
        exported = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert entities <= set(re.findall(r"^(/\S+):", exported, re.MULTILINE))


def test_failed_recording_keeps_the_older_file(random_run: Path, tmp_path: Path) -> None:
    """A step disappears during the export, since the run is written again."""
    pytest.importorskip("rerun")
    run = run_of(random_run)
    episode, third = first(run), first(run).positions[2]
    cut = replace(episode, positions=[*episode.positions[:2], replace(third, start=third.start + 1)])
    path = tmp_path / "episode.rrd"
    path.write_bytes(b"older")
    with pytest.raises(DataError):
        write_rrd(run, cut, path)
    assert path.read_bytes() == b"older" and list(tmp_path.iterdir()) == [path]


def test_missing_rerun_is_an_error(synthetic: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rerun", None)
    with pytest.raises(ConfigError, match=r"pip install 'keep-agent\[rerun\]'"):
        write_rrd(run_of(synthetic), first(run_of(synthetic)), tmp_path / "x.rrd")
    assert not (tmp_path / "x.rrd").exists()


def test_heat_map_is_filled_down_to_the_last_layer(synthetic: Path) -> None:
    run = run_of(synthetic)
    view = step_view(run, first(run), 5).prompt
    assert view is not None
    pixels = heat_map(view)
    assert pixels.shape == (6, 12, 3)
    computed = (pixels != np.array(COLOURS[0])).any(-1).sum(0)
    assert computed.tolist() == [segment.last_layer + 1 for segment in view.segments]
