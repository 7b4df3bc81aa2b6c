"""Components: classes of the stages are made from plain values; no function, and no other class, is ever called."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from keep_agent.errors import ConfigError
from memory.config.component_names import METHOD, STAGES, check_names, is_own
from memory.config.components import component
from memory.loading.serial import Serial
from memory.method import MEMBERS, MemoryMethod
from memory.stages import Capabilities
from memory.storage.ram import Ram
from memory.storage.tiers import Tiers

HOSTILE = {  # what a config may say, with the file that would be there if it were done
    "os.system": lambda mark: {"command": f"touch {mark}"},
    "subprocess.getoutput": lambda mark: {"cmd": f"touch {mark}"},
    "subprocess.Popen": lambda mark: {"args": ["touch", mark]},
    "builtins.open": lambda mark: {"file": mark, "mode": "w"},
    "builtins.eval": lambda mark: {"_args_": [f"open({mark!r}, 'w')"]},
    "pathlib.Path.touch": lambda mark: {"self": {"_target_": "pathlib.Path", "_args_": [mark]}},
    "torch.save": lambda mark: {"obj": 1, "f": mark},
    "hydra.utils.instantiate": lambda mark: {"config": {"_target_": "builtins.open", "file": mark, "mode": "w"}},
    "memory.config.components.import_module": lambda mark: {"name": "antigravity"},
    "memory.storage.disk.Path": lambda mark: {},
    "memory.storage.tiers.CacheLedger": lambda mark: {},
    "memory.storage.block_pages.Pages": lambda mark: {"file": mark},
    "memory.method.MemoryMethod.__init__": lambda mark: {},
}


def method(**changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "_target_": METHOD,
        "name": "test",
        "retrieval": {"_target_": "memory.retrieval.all.All"},
        "construction": {"_target_": "memory.construction.per_segment.PerSegment"},
        "recompute": {"_target_": "memory.recompute.none.Nothing"},
        "loading": {"_target_": "memory.loading.serial.Serial"},
    }
    return {**base, **changes}


PLACES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "stage": lambda node: method(loading=node),
    "tier": lambda node: method(storage={"_target_": "memory.storage.tiers.Tiers", "tiers": [node]}),
    "argument": lambda node: method(construction={"_target_": "memory.construction.prefix.Prefix", "block_size": node}),
    "whole": lambda node: node,
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", HOSTILE)
def test_nothing_but_a_component_is_made(name: str, place: str, tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    node = PLACES[place]({"_target_": name, **HOSTILE[name](str(mark))})
    with pytest.raises(ConfigError):
        component(node)
    assert not mark.exists()


@pytest.mark.parametrize("key", ["_partial_", "_recursive_", "_convert_", "_args_"])
def test_what_hydra_would_do_differently_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=f"memory.loading: Serial cannot be made.*{key}"):
        component(method(loading={"_target_": "memory.loading.serial.Serial", key: True}))


@pytest.mark.parametrize("name", [None, 3, "", "Serial", "memory..Serial", "memory.loading.serials.Serial", ["os"]])
def test_a_name_of_nothing_is_refused_with_its_place(name: object) -> None:
    with pytest.raises(ConfigError, match=r"memory\.loading\._target_="):
        component(method(loading={"_target_": name}))


def test_a_renamed_setting_is_refused_with_its_new_name() -> None:
    node = method(frozen={"_target_": "memory.kv_cache.pinned_blocks.PinnedPool"})
    with pytest.raises(ConfigError, match=r"no setting 'memory\.frozen'; memory\.frozen is called memory\.pinned now"):
        component(node)


def test_parts_of_components_are_components() -> None:
    tiers = {"_target_": "memory.storage.tiers.Tiers", "tiers": [{"_target_": "memory.storage.ram.Ram"}]}
    made = component(method(storage=tiers))
    assert isinstance(made, MemoryMethod) and isinstance(made.loading, Serial)
    assert isinstance(made.storage, Tiers) and isinstance(made.storage.tiers[0], Ram)


@dataclass(frozen=True)
class Mine:
    """A loading stage of a user's own package."""

    capabilities: ClassVar[Capabilities] = Capabilities()
    overlaps: ClassVar[bool] = False

    def schedule(self, *_: object) -> list[Any]:
        return []


def test_a_class_of_yours_takes_a_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "my_package", __import__("types").SimpleNamespace(Mine=Mine))
    assert isinstance(component(method(loading={"_target_": "my_package.Mine"})).loading, Mine)


def test_names_are_told_apart_without_importing_anything() -> None:
    assert tuple(MEMBERS) == STAGES
    assert not any(map(is_own, [*HOSTILE, "memory.loading.serial", "memory.loading.a.b.C", "my_package.Mine"][:8]))
    check_names(method())
    with pytest.raises(ConfigError, match=r"RUN names 'no.such.thing' under memory.loading._target_.*command line"):
        check_names({"memory": method(loading={"_target_": "no.such.thing"})}, source="RUN")
    check_names({"memory": method(loading={"_target_": "my_package.Mine"})}, ["my_package.Mine"])


@pytest.mark.parametrize("values", [{"a": [{"b": [[{"_target_": "os.system"}]]}]}, {"_target_": {"_target_": "x"}}])
def test_names_are_found_at_any_depth(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        check_names(values)
