"""Settings of the simulator: refused values and resulting command lines."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from envs.alfred.setting import AlfredSetting
from envs.alfred.spec import SPEC
from envs.alfred.thor.options import ThorOptions, thor_options
from keep_agent.errors import ConfigError


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"platform": "Amiga"}, "env.thor.platform='Amiga'"), ({"server": "smtp"}, "env.thor.server='smtp'"),
        ({"width": 0}, "env.thor.width=0"), ({"height": 300.5}, "env.thor.height=300.5"),
        ({"tries": True}, "env.thor.tries=True"), ({"timeout": -1}, "env.thor.timeout=-1"),
        ({"gpu": "first"}, "env.thor.gpu='first'"), ({"headless": "yes"}, "env.thor.headless='yes'"),
        ({"executable": True}, "env.thor.executable=True is not a text"),
        ({"quality": None}, "env.thor.quality=None is not a text"),
        ({"colour": "red"}, "env.thor.colour is unknown; use one of executable, platform"),
    ],
)  # fmt: skip
def test_bad_values_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        thor_options(options)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"backend": "unity"}, "backend='unity' is unknown; use one of symbolic, thor"),
        ({"render": "rgb"}, "set env.backend=thor"),
        ({"backend": "thor", "render": "cinema"}, "render='cinema'"),
        ({"backend": "thor", "render": "rgb", "thor": {"headless": True}}, "makes no images"),
    ],
)
def test_contradictory_choices_are_refused(choices: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        AlfredSetting(**choices)


def test_embedded_houses_are_played_on_the_stand_in_and_results_name_it() -> None:
    assert thor_options({}, embedded=True).is_stand_in and not thor_options(None).is_stand_in
    assert thor_options({"executable": "unity"}, embedded=True).executable == "unity"
    assert SPEC.label({}) == "Alfred-v0"
    assert SPEC.label({"backend": "thor", "data": "json_2.1.0"}) == "ALFRED tasks on AI2-THOR 5"
    assert SPEC.label({"backend": "thor", "data": None}) == "ALFRED tasks on a stand-in for AI2-THOR 5"


def test_command_lines(tmp_path: Path) -> None:
    build = tmp_path / "a build"
    build.touch()
    assert ThorOptions().command(None) is None
    assert ThorOptions(executable=str(build)).command(None) == f"'{build}'"
    assert ThorOptions(executable="python -m mine").command(None) == "python -m mine"
    stand_in = ThorOptions(executable="stand-in").command("/data")
    assert stand_in == f"{sys.executable} -m envs.alfred.thor_stub --data /data"
    with pytest.raises(ConfigError, match="there is no /no/such/build"):
        ThorOptions(executable="/no/such/build -x").command(None)
