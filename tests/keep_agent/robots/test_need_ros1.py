"""Tests that need ROS 1 are skipped with the name of the missing part, and fail in continuous integration."""

from __future__ import annotations

import pytest

from tests.keep_agent.robots import ros


def install(monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
    """Simulate that only these modules, and no roscore, are installed."""
    monkeypatch.setattr(ros, "importable", lambda name: name in modules)
    monkeypatch.setattr(ros.shutil, "which", lambda name: None)


def test_complete_installation_runs_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, *ros.NEEDED, "std_srvs.srv")
    ros.need_ros1("std_srvs.srv")


@pytest.mark.parametrize(
    ("modules", "module", "master", "text"),
    [
        (ros.NEEDED, "std_srvs.srv", False, "std_srvs.srv is missing"),
        (ros.NEEDED, "rospy", True, "roscore is missing"),
        ((), "rospy", False, "rospy, rosgraph"),
    ],
)
def test_missing_part_is_named(
    monkeypatch: pytest.MonkeyPatch, modules: tuple[str, ...], module: str, master: bool, text: str
) -> None:
    install(monkeypatch, *modules)
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match=text):
        ros.need_ros1(module, master=master)
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match=text):
        ros.need_ros1(module, master=master)
