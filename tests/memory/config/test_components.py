"""Components: only classes of the stages are built from a config; no other class or function is called."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from keep_agent.errors import ConfigError
from memory.config.choices import RENAMED
from memory.config.component_names import METHOD, STAGES, check_classes, check_names, is_own
from memory.config.components import component
from memory.loading.serial import Serial
from memory.method import MEMBERS, MemoryMethod
from memory.stages import Capabilities
from memory.storage.ram import Ram
from memory.storage.tiers import Tiers

HOSTILE = {  # targets with arguments that would create a file
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
def test_only_components_are_built(name: str, place: str, tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    node = PLACES[place]({"_target_": name, **HOSTILE[name](str(mark))})
    with pytest.raises(ConfigError):
        component(node)
    assert not mark.exists()


SERIAL = "memory.loading.serial.Serial"
KEYS = ("_partial_", "_recursive_", "_convert_", "_args_")  # special in Hydra
NAMES = (None, 3, "", "Serial", "memory..Serial", "memory.loading.serials.Serial", ["os"])


@pytest.mark.parametrize(("stages", "sentence"), [
    *(({"loading": {"_target_": SERIAL, key: True}}, f"memory.loading: Serial cannot be made.*{key}") for key in KEYS),
    *(({"loading": {"_target_": name}}, r"memory\.loading\._target_=") for name in NAMES),
    ({"frozen": {"_target_": "memory.kv_cache.pinned_blocks.PinnedPool"}},
     r"no setting 'memory\.frozen'; memory\.frozen is called memory\.pinned now"),
])  # fmt: skip
def test_bad_components_are_refused_with_their_place(stages: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        component(method(**stages))


def test_parts_of_components_are_components() -> None:
    tiers = {"_target_": "memory.storage.tiers.Tiers", "tiers": [{"_target_": "memory.storage.ram.Ram"}]}
    result = component(method(storage=tiers))
    assert isinstance(result, MemoryMethod) and isinstance(result.loading, Serial)
    assert isinstance(result.storage, Tiers) and isinstance(result.storage.tiers[0], Ram)


@dataclass(frozen=True)
class OwnLoading:
    """Loading stage of a user's own package."""

    capabilities: ClassVar[Capabilities] = Capabilities()
    overlaps: ClassVar[bool] = False

    def schedule(self, *_: object) -> list[Any]:
        return []


def test_a_users_own_class_may_be_a_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "my_package", SimpleNamespace(OwnLoading=OwnLoading))
    assert isinstance(component(method(loading={"_target_": "my_package.OwnLoading"})).loading, OwnLoading)


def test_names_are_checked_without_an_import() -> None:
    assert tuple(MEMBERS) == STAGES and not any(map(is_own, [*HOSTILE][:8]))
    check_names(method())
    with pytest.raises(ConfigError, match=r"RUN names 'no.such.thing' under memory.loading._target_.*command line"):
        check_names({"memory": method(loading={"_target_": "no.such.thing"})}, source="RUN")
    check_names({"memory": method(loading={"_target_": "my_package.OwnLoading"})}, ["my_package.OwnLoading"])


@pytest.mark.parametrize("values", [{"a": [{"b": [[{"_target_": "os.system"}]]}]}, {"_target_": {"_target_": "x"}}])
def test_names_are_found_at_any_depth(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        check_names(values)


@pytest.mark.parametrize("old", ["memory.frozen.FrozenPool", "memory.graph.Grouping", "memory.schedule.Schedule"])
@pytest.mark.parametrize("check", [check_names, check_classes, component])
def test_a_class_of_an_earlier_version_is_refused_with_its_new_name(check: Callable[[Any], Any], old: str) -> None:
    with pytest.raises(ConfigError, match=f"{old} is called {RENAMED[old]} now"):
        check({"_target_": old})
