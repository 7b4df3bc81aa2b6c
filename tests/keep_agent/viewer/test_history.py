"""A history gives at every step what replaying the changes up to it gives."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from keep_agent.viewer.history import History

CHANGES = st.lists(st.tuples(st.integers(0, 9), st.sampled_from("abc"), st.none() | st.text(max_size=2)), max_size=30)


def replayed(changes: list[tuple[int, str, str | None]], step: int) -> dict[str, str]:
    state = {id: value for since, id, value in changes if since <= step}
    return {id: value for id, value in state.items() if value is not None}


@given(changes=CHANGES)
def test_it_is_a_replay(changes: list[tuple[int, str, str | None]]) -> None:
    changes.sort(key=lambda change: change[0])
    history: History[str] = History()
    for since, id, value in changes:
        history.add(since, id, value)
    for step in range(-1, 11):
        assert dict(history.at(step)) == replayed(changes, step)


def test_versions_are_the_texts_so_far() -> None:
    history: History[str] = History()
    for step, value in enumerate(["one", None, "two"]):
        history.add(step, "a", value)
    assert history.versions(1, "a") == [(0, "one")]
    assert history.versions(2, "a") == [(0, "one"), (2, "two")]
    assert history.versions(2, "b") == []
