"""Packages: a complete wheel that works in an empty environment, and the source archive."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard

import keep_agent
from planners.bundled import PLANNERS
from tests.test_imports import ROOMS, ROOT

ALONE = """
import sys

def refuse(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo"):
        raise OSError(f"no network here: {arguments}")

sys.addaudithook(refuse)
"""


def run(*command: str | Path, cwd: Path) -> str:
    result = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def build(source: Path, out: Path, *targets: str) -> None:
    """Build in this environment, so that the package index is not needed."""
    pytest.importorskip("hatchling", reason="needs hatchling: pip install 'keep-agent[dev]'")
    run(sys.executable, "-m", "hatchling", "build", "-d", out, *targets, cwd=source)


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the wheel and the source archive."""
    out = tmp_path_factory.mktemp("dist")
    build(ROOT, out)
    return out


def contents(wheel: Path) -> dict[str, int]:
    """Return the checksums of the files in a wheel."""
    with zipfile.ZipFile(wheel) as file:
        return {entry.filename: entry.CRC for entry in file.infolist()}


@pytest.mark.slow
def test_the_wheel_holds_the_packages_and_nothing_else(dist: Path) -> None:
    names = {name for name in contents(*dist.glob("*.whl")) if ".dist-info/" not in name}
    files = {path.relative_to(ROOT) for room in ROOMS for path in (ROOT / room).rglob("*") if path.is_file()}
    assert names == {path.as_posix() for path in files if "__pycache__" not in path.parts}


@pytest.mark.slow
def test_the_source_archive_makes_the_same_wheel(dist: Path, tmp_path: Path) -> None:
    with tarfile.open(*dist.glob("*.tar.gz")) as file:
        file.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.3 has none
        file.extractall(tmp_path)
    (source,) = tmp_path.iterdir()
    build(source, tmp_path / "again", "-t", "wheel")
    assert contents(*(tmp_path / "again").glob("*.whl")) == contents(*dist.glob("*.whl"))


@pytest.mark.slow
def test_the_wheel_works_in_an_empty_folder_without_network(dist: Path, tmp_path: Path) -> None:
    """The new environment has the libraries of this one, but none of its editable packages."""
    run(sys.executable, "-m", "venv", "--without-pip", "venv", cwd=tmp_path)
    bin, site = tmp_path / "venv/bin", next((tmp_path / "venv").glob("lib/python*/site-packages"))
    run(sys.executable, "-m", "pip", "--python", bin / "python", "install", "--no-deps", "--no-index",
        *dist.glob("*.whl"), cwd=tmp_path)  # fmt: skip
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    (site / "sitecustomize.py").write_text(ALONE)
    empty = tmp_path / "empty"
    empty.mkdir()
    assert str(site) in run(bin / "python", "-c", "import keep_agent; print(keep_agent.__file__)", cwd=empty)
    run(bin / "keep-eval-alfred", "planner=keep", "eval.episodes=2", cwd=empty)
    (summary,) = empty.glob("outputs/*/summary.json")
    assert json.loads(summary.read_text())["tasks"] == 2


def test_all_name_the_same_version() -> None:
    version = keep_agent.__version__
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    released = re.findall(r"^## (\d\S+) - (\S+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert (citation["version"], str(citation["date-released"])) == released[0]
    assert citation["version"] == version
    assert f"version = {{{version}}}" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_papers_of_all_methods_are_cited() -> None:
    methods = (yaml.safe_load(path.read_text(encoding="utf-8")) for path in (ROOT / "configs/memory").glob("*.yaml"))
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert [paper for method in methods if (paper := method.get("paper")) and f"arXiv:{paper}" not in citation] == []


@pytest.mark.parametrize("folder", PLANNERS.values(), ids=PLANNERS)
def test_a_planner_is_a_model_repository_of_its_own(folder: Path) -> None:
    card = ModelCard.load(folder / "README.md")
    assert (card.data.license, card.data.library_name) == ("apache-2.0", "transformers")
    for line in (folder / "SHA256SUMS").read_text().splitlines():
        digest, name = line.split()
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest, name
