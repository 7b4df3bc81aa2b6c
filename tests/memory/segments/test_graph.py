from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from memory.segments.groups import Flip, Grouping
from memory.segments.store import HISTORY, SegmentStore, prompt_order
from tests.memory.houses import furnish, make_house, make_store


def kinds(store: SegmentStore) -> dict[str, bool]:
    return {segment.id: store.graph.group_of[segment.id].static for segment in store}


def put(store: SegmentStore, texts: dict[str, str], category: str = "object", parent: str | None = None) -> list[Flip]:
    """Put segments and update the graph."""
    for id, text in texts.items():
        store.put(id, category, f"{text}\n", parent)
    return store.graph.update(store)


def run(store: SegmentStore, steps: int) -> list[tuple[int, bool]]:
    flips = []
    for _ in range(steps):
        store.advance()
        flips += [(flip.step, flip.static) for flip in store.graph.update(store)]
    return flips


def test_children_join_their_parent_and_others_are_bounded() -> None:
    store = make_store(Grouping(bound=3))
    store.put("shelf_1", "receptacle", "shelf shelf_1\n")
    for i in range(8):
        store.put(f"book_{i}", "object", f"book book_{i} shelf_1\n", parent="shelf_1" if i < 4 else None)
    store.graph.update(store)
    groups = [tuple(group.members) for group in store.graph.groups.values()]
    assert groups == [("shelf_1", "book_0", "book_1", "book_2", "book_3"), ("book_4", "book_5", "book_6"), ("book_7",)]
    assert store.graph.graph.edges["book_0", "shelf_1"]["contains"] == "shelf_1"


def test_similar_segments_of_a_family_share_a_group() -> None:
    store = make_store()
    store.put("did_1", "history", "did pen pen_1 desk_1\n")
    store.put("sofa_1", "receptacle", "sofa sofa_1\n")
    put(store, {"pen_1": "pen pen_1 desk_1", "pen_2": "pen pen_2 desk_1"})
    graph = store.graph
    assert graph.group_of["pen_1"] is graph.group_of["pen_2"]
    assert graph.group_of["did_1"] is not graph.group_of["pen_1"]
    assert graph.group_of["sofa_1"] is not graph.group_of["pen_1"]
    assert graph.graph.edges["pen_1", "pen_2"]["similarity"] > 0.5
    store.advance()
    put(store, {"pen_1": "gone without trace"})
    assert not graph.graph.has_edge("pen_1", "pen_2")


def test_segments_changed_together_are_compared_by_their_new_text() -> None:
    store = make_store()
    texts = {"a": "pen desk_1", "b": "pen desk_2", "c": "towel bath_1", "d": "towel bath_2"}
    put(store, texts)
    edges = store.graph.graph.edges
    assert set(edges) == {("a", "b"), ("c", "d")}
    put(store, {id: texts[regrouped].replace("_", "_1") for id, regrouped in zip("abcd", "cdab", strict=True)})
    assert set(edges) == {("a", "b"), ("c", "d")}
    vectors = dict(zip("ab", store.graph.encoder.encode([store.get(id).text for id in "ab"]), strict=True))
    assert abs(edges["a", "b"]["similarity"] - float(vectors["a"] @ vectors["b"])) < 1e-6
    put(store, {"b": "sofa"})
    assert set(edges) == {("c", "d")}


def test_a_segment_is_linked_to_the_most_similar_of_its_family() -> None:
    rng = random.Random(0)
    store = make_store(Grouping(threshold=0.2, neighbours=2))
    store.put("did", "history", "mug mug_1 table red\n")
    for i in range(40):
        store.put(f"mug_{i}", "object", f"mug mug_{i} table {rng.choice(['red', 'blue', 'green'])} {rng.random()}\n")
    store.graph.update(store)
    put(store, {"mug_5": "mug mug_5 cabinet blue"})
    scores = store.graph.scores(store.get("mug_5").text)
    best = sorted((s.id for s in store if s.id not in ("mug_5", "did")), key=lambda id: -scores[id])[:2]
    linked = {id: edge["similarity"] for id, edge in store.graph.graph["mug_5"].items()}
    assert set(linked) == set(best) and all(abs(linked[id] - scores[id]) < 2e-5 for id in best)


def test_groups_do_not_depend_on_the_batch_size() -> None:
    rng = random.Random(0)
    lines = [f"{rng.choice(['mug', 'pen', 'towel', 'pan'])} thing_{i} place_{i % 9}" for i in range(600)]
    together, singly = make_store(), make_store()
    for i, line in enumerate(lines):
        together.put(f"s{i}", "object", f"{line}\n")
        put(singly, {f"s{i}": line})
    together.graph.update(together)
    groups = [[tuple(group.members) for group in s.graph.groups.values()] for s in (together, singly)]
    assert groups[0] == groups[1]


def test_quiet_groups_become_static_and_back() -> None:
    store = make_house()
    assert run(store, 9) == []
    assert run(store, 1) == [(10, True)] * len({store.graph.group_of[s.id].id for s in store if s.id != "agent"})
    assert kinds(store) == {segment.id: segment.id != "agent" for segment in store}
    (flip,) = put(store, {"mug_1": "mug mug_1 table_9"}, parent="cabinet_2")
    assert not flip.static
    dynamic = {id for id, static in kinds(store).items() if not static}
    assert dynamic == {"agent", *store.graph.group_of["mug_1"].members} and run(store, 9) == []
    assert run(store, 1) == [(20, True)]


def test_an_empty_store_has_no_scores() -> None:
    store = make_store()
    assert not len(store.graph.scores("mug").values)
    put(store, {"mug_1": "mug"})
    store.remove("mug_1")
    store.graph.update(store)
    assert not len(store.graph.scores("mug").values)


def test_a_removed_member_makes_its_group_dynamic() -> None:
    store = make_house()
    run(store, 10)
    group = store.graph.group_of["mug_1"]
    store.remove("mug_1")
    assert [flip.group for flip in store.graph.update(store)] == [group.id] and "mug_1" not in group.members


def test_static_groups_accept_children_but_no_similar_segments() -> None:
    store = make_house(cabinets=1, objects=2)
    run(store, 10)
    home = store.graph.group_of["cabinet_1"]
    assert put(store, {"mug_8": "mug mug_8 cabinet_1"}) == [] and store.graph.group_of["mug_8"] is not home
    assert [flip.group for flip in put(store, {"mug_9": "mug mug_9 cabinet_1"}, parent="cabinet_1")] == [home.id]


def test_prompt_order() -> None:
    store = make_house(cabinets=2, objects=4)
    run(store, 6)
    store.put("mug_1", "object", "mug mug_1 table_1\n")  # cabinet_2's group becomes static later than cabinet_1's
    run(store, 10)
    store.put("fork_1", "object", "fork fork_1 sink_1\n")
    run(store, 1)
    store.put("agent", "agent", "agent at sink_1 holding nothing\n")
    put(store, {"apple_1": "apple apple_1 sink_1"})
    order = prompt_order([s.id for s in store], store)
    assert order == ["cabinet_1", "mug_2", "mug_4", "cabinet_2", "mug_3", "mug_1", "fork_1", "apple_1", "agent"]
    run(store, 1)
    put(store, {"mug_2": "mug mug_2 hand"})
    order = prompt_order(reversed(order), store)
    assert order == ["cabinet_2", "mug_3", "mug_1", "cabinet_1", "mug_4", "fork_1", "apple_1", "mug_2", "agent"]


STEPS = st.lists(
    st.lists(st.tuples(st.integers(0, 15), st.sampled_from(["put", "move", "remove"])), max_size=4), max_size=30
)


@given(STEPS)
@settings(max_examples=60)
def test_groups_are_stable_and_consistent(steps: list[list[tuple[int, str]]]) -> None:
    store = make_store(Grouping(threshold=0.4, bound=4, window=3))
    lived: dict[tuple[str, int], int] = {}
    for edits in steps:
        for number, kind in edits:
            id = f"mug_{number}"
            if kind == "remove" and id in store:
                store.remove(id)
            elif kind != "remove":
                place = "table" if kind == "put" else f"cabinet_{store.step % 3}"
                store.put(id, "object", f"mug {id} {place}\n", parent=f"mug_{number // 2}")
        store.graph.update(store)
        for segment in store:
            group = store.graph.group_of[segment.id]
            assert lived.setdefault((segment.id, segment.created), group.id) == group.id
            assert segment.id in group.members
            quiet = store.step - max(store.get(id).last_changed for id in group.members)
            assert not group.static or quiet >= 3
            assert group.static == (store.step - group.last_changed >= 3)
        members = [id for group in store.graph.groups.values() for id in group.members]
        assert sorted(members) == sorted(s.id for s in store) == sorted(store.graph.graph.nodes)
        assert all(group.members for group in store.graph.groups.values()) and store.graph.update(store) == []
        scores = store.graph.scores("mug mug_1 table")
        exact = store.graph.encoder.encode(["mug mug_1 table"])[0]
        for segment in store:
            assert abs(scores[segment.id] - float(store.graph.encoder.encode([segment.text])[0] @ exact)) < 1e-4
        store.advance()


def test_a_cleared_graph_is_rebuilt_without_the_forgotten_changes() -> None:
    store, whole = make_store(), make_store()
    for s in (store, whole):
        furnish(s, cabinets=40, objects=260)
        for step in range(HISTORY):
            s.put("mug_1", "object", f"mug mug_1 place_{step % 7}\n")
            if s is store:
                s.graph.update(s)
    whole.graph.update(whole)
    assert len(store.history) == HISTORY < store.changes
    store.graph.clear()
    store.graph.update(store)
    assert [list(group.members) for group in store.graph.groups.values()] == [
        list(group.members) for group in whole.graph.groups.values()
    ]
