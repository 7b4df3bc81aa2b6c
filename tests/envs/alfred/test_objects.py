"""Object classes: consistent with each other and with ALFRED's counts."""

from __future__ import annotations

import pytest

from envs.alfred import objects
from envs.alfred.objects import accepts, lota_words, may_hold, say, whole


@pytest.mark.parametrize(
    ("receptacle", "count"),
    [("CounterTop", 58), ("Bowl", 28), ("Fridge", 19), ("GarbageCan", 26), ("Shelf", 36), ("Sofa", 11), ("Pot", 16)],
)
def test_the_table_has_the_counted_number_of_types(receptacle: str, count: int) -> None:
    assert len(accepts(receptacle)) == count


def test_classes_are_consistent() -> None:
    assert len(objects.LOTA_PICKUPABLE) == 53
    assert objects.MOVABLE_RECEPTACLES <= objects.PICKUPABLE & objects.RECEPTACLES
    assert not objects.FIXTURES & objects.PICKUPABLE
    assert frozenset().union(*objects.ACCEPTED.values()) <= objects.PICKUPABLE
    treatable = objects.HEATABLE | objects.COOLABLE | objects.CLEANABLE
    assert treatable <= objects.PICKUPABLE
    assert (len(objects.HEATABLE), len(objects.COOLABLE), len(objects.CLEANABLE)) == (12, 18, 25)


def test_other_types_accept_nothing() -> None:
    assert accepts("DeskLamp") == frozenset() and not may_hold("Apple", "Knife")


def test_a_container_never_goes_in_a_container() -> None:
    assert "Mug" in accepts("Box") and not may_hold("Box", "Mug") and may_hold("Cabinet", "Mug")


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("AlarmClock", "alarm clock"), ("CD", "CD"), ("SinkBasin", "sink"), ("TVStand", "tv stand"),
        ("Glassbottle", "glassbottle"), ("BathtubBasin", "bathtub"),
    ],
)  # fmt: skip
def test_lota_words(kind: str, words: str) -> None:
    assert lota_words(kind) == words


def test_names_of_slices_and_instances() -> None:
    assert whole("AppleSliced") == "Apple" and whole("Plate") == "Plate"
    assert say("applesliced_2") == "applesliced 2"
