"""Our household and VirtualHome's own executors, step by step: they differ in what is listed, and in nothing else."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from envs.wah.action import OPEN, PUT_IN, PUT_ON, VERBS, WALK, Action
from envs.wah.checks import RULES, Rules, refusal
from envs.wah.formats import read_graph, write_graph
from envs.wah.generator import generate_episode
from envs.wah.goals import goal_conditions, parse_goal, place_class
from envs.wah.graph import CLOSE, Graph
from envs.wah.home import Home
from envs.wah.lota import LotaSkills
from envs.wah.names import simulated
from envs.wah.placing import GraphJson, likely_holders, place
from tests.envs.wah.differences import DIFFERENCES, Tally, compare, oracle_of
from tests.envs.wah.oracle import require_oracle

Record = dict[str, Any]
EMBEDDED = (2, 14, 160)  # apartments, walks in each, steps a walk
SHARED_STEPS = 25
SENSIBLE = 0.6  # share of actions that are chosen among those allowed


@pytest.fixture(scope="module", autouse=True)
def _installed() -> None:
    require_oracle()
