from __future__ import annotations

import pytest

from memory.construction.base import Construction
from memory.construction.fixed_blocks import FixedBlocks
from memory.construction.per_segment import PerSegment
from memory.construction.prefix import Prefix
from memory.construction.segments import Segments
from memory.construction.static_dynamic import StaticDynamic
from memory.prompt.layout import Unit
from memory.segments.store import SegmentStore, prompt_order
from tests.memory.houses import make_house


def plan(construction: Construction, store: SegmentStore) -> list[Unit]:
    ids = prompt_order([segment.id for segment in store], store)
    return construction.plan([store.get(id) for id in ids], store, store.step)


@pytest.mark.parametrize("construction", [PerSegment(), Segments(), Prefix(), FixedBlocks(size=7), StaticDynamic()])
@pytest.mark.parametrize("step", [0, 10])
def test_units_are_the_chosen_tokens_in_order(construction: Construction, step: int) -> None:
    store = make_house(step)
    ids = prompt_order([segment.id for segment in store], store)
    units = plan(construction, store)
    assert [t for unit in units for t in unit.token_ids] == [t for id in ids for t in store.tokens(id)]
    spelled: dict[str, list[int]] = {}
    for unit in units:
        for span in unit.spans:
            spelled.setdefault(span.segment, []).extend(unit.token_ids[span.start : span.stop])
    assert spelled == {id: list(store.tokens(id)) for id in ids}


def test_fixed_blocks_cut_through_segments_and_shift() -> None:
    store = make_house()
    before = plan(FixedBlocks(size=8), store)
    assert [len(unit.token_ids) for unit in before[:-1]] == [8] * (len(before) - 1)
    store.put("cabinet_1", "receptacle", "cabinet cabinet_1 very open\n")
    after = FixedBlocks(size=8).plan(list(store), store, 1)
    same_order = FixedBlocks(size=8).plan(list(make_house()), make_house(), 0)
    equal = [a.token_ids == b.token_ids for a, b in zip(same_order, after, strict=False)]
    changed = equal.index(False)
    assert not any(equal[changed:])


def test_static_groups_are_one_unit_and_dynamic_segments_their_own() -> None:
    assert {unit.kind for unit in plan(StaticDynamic(), make_house())} == {"segment"}
    store = make_house(10)
    units = plan(StaticDynamic(), store)
    groups = [tuple(span.segment for span in unit.spans) for unit in units if unit.kind == "static_group"]
    assert sorted(groups) == sorted(tuple(g.members) for g in store.graph.groups.values() if g.static)
    assert [span.segment for unit in units if unit.kind == "segment" for span in unit.spans] == ["agent"]
    store.put("mug_1", "object", "mug mug_1 hand\n")
    store.graph.update(store)
    after = plan(StaticDynamic(), store)
    single = {span.segment for unit in after if unit.kind == "segment" for span in unit.spans}
    assert single == {"agent", *store.graph.group_of["mug_1"].members}
    assert {unit for unit in units if unit.kind == "static_group"} > {u for u in after if u.kind == "static_group"}
