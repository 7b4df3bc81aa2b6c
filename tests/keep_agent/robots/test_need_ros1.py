"""Tests that need ROS 1 are skipped by what is missing, and fail for it in continuous integration."""

from __future__ import annotations

import pytest

from tests.keep_agent.robots import ros


def having(monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
    """As if these modules, and no roscore, were installed."""
    monkeypatch.setattr(ros, "importable", lambda name: name in modules)
    monkeypatch.setattr(ros.shutil, "which", lambda name: None)


def test_what_is_there_suffices(monkeypatch: pytest.MonkeyPatch) -> None:
    having(monkeypatch, *ros.NEEDED, "std_srvs.srv")
    ros.need_ros1("std_srvs.srv")


@pytest.mark.parametrize(
    ("modules", "asked", "missing"),
    [
        (ros.NEEDED, {"master": False, "extra": "std_srvs.srv"}, "std_srvs.srv is missing"),
        (ros.NEEDED, {"master": True, "extra": "rospy"}, "roscore is missing"),
        ((), {"master": False, "extra": "rospy"}, "rospy, rosgraph"),
    ],
)
def test_what_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, modules: tuple[str, ...], asked: dict, missing: str
) -> None:
    having(monkeypatch, *modules)
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match=missing):
        ros.need_ros1(asked["extra"], master=asked["master"])
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match=missing):
        ros.need_ros1(asked["extra"], master=asked["master"])
