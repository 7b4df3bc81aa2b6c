"""Runs on a Ray cluster end as those of one process do, though a node is lost. Two raylets stand for two machines."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partialmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from envs.alfred.thor.processes import descendants
from eval import alfred
from eval.workers.supervisor import Crowd, Died
from keep_agent.guard import BAD_INPUT
from keep_agent.rollout.run_folder import RunFolder
from tests.eval.workers.runs import assert_done, assert_same, the_run
from tests.waiting import PATIENCE

if TYPE_CHECKING:
    from ray.cluster_utils import Cluster

Command = Callable[..., tuple[int, str, str]]
RAY = "eval.launcher=ray"
RANDOM = ("planner=random", "eval.episodes=40", "env.skills=grounded", "env.stream=2")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A head with room for one worker, and nothing else yet."""
    try:
        from ray.cluster_utils import Cluster
    except ImportError:
        if os.environ.get("CI"):
            pytest.fail("these tests need Ray: pip install -c constraints.txt -e '.[ray]'")
        pytest.skip("needs the extra ray")
    for name in ("RAY_ADDRESS", "RAY_NAMESPACE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_gcs_server_port_wait_time_s", str(int(PATIENCE)))
    monkeypatch.setattr(Cluster, "_wait_for_node", partialmethod(Cluster._wait_for_node, timeout=PATIENCE))
    started = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    yield started
    started.shutdown()


def test_fractions_of_a_gpu_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    actors = pytest.importorskip("eval.workers.ray_actors", reason="needs the extra ray")
    nodes = [{"Alive": True, "Resources": {"GPU": 1.0, "CPU": 64.0}}]
    monkeypatch.setattr(actors.ray, "nodes", lambda: nodes)
    assert [actors._room({"CPU": 1, "GPU": share}) for share in (0.1, 0.2, 0.3, 1)] == [10, 5, 3, 1]


def lose(monkeypatch: pytest.MonkeyPatch, cluster: Cluster, node: Any, after: int = 3) -> None:
    """A machine goes down behind so many episodes, with its actors, which would outlive their raylet a while."""
    commit, count = RunFolder.commit, iter(range(1, 1000))

    def watched(run: RunFolder, *given: Any) -> None:
        commit(run, *given)
        if next(count) == after:
            actors = [pid for info in node.all_processes["raylet"] for pid in descendants(info.process.pid)]
            cluster.remove_node(node, allow_graceful=False)
            for pid in actors:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    monkeypatch.setattr(RunFolder, "commit", watched)


def on(cluster: Cluster, workers: int) -> tuple[str, ...]:
    return RAY, f"eval.ray.address={cluster.address}", f"eval.workers={workers}"


def test_a_lost_node_loses_no_episode(call: Command, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_done(call(alfred.main, *RANDOM, "eval.out=one"))
    lose(monkeypatch, cluster, cluster.add_node(num_cpus=1))
    again, count = [], Crowd._count

    def counted(crowd: Crowd[Any], index: int | None, death: Died) -> None:
        again.append(index)
        count(crowd, index, death)

    monkeypatch.setattr(Crowd, "_count", counted)
    assert_done(call(alfred.main, *RANDOM, "eval.out=two", *on(cluster, 2)))
    assert len(again) == 1 and again[0] is not None  # it was cut off in the middle of one
    assert_same(the_run("two"), the_run("one"))


@pytest.mark.slow
def test_a_run_without_nodes_ends_and_goes_on_elsewhere(
    call: Command, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_done(call(alfred.main, *RANDOM, "eval.out=one"))
    lose(monkeypatch, cluster, cluster.add_node(num_cpus=2))
    code, _, err = call(alfred.main, *RANDOM, "eval.out=two", *on(cluster, 1), "eval.ray.num_cpus=2")
    folder = the_run("two")
    assert code == BAD_INPUT and err.count("\n") == 1 and f"eval.resume={folder.resolve()}" in err
    assert "no node of the Ray cluster is left" in err
    assert 3 <= len(RunFolder.read(folder)) < 40
    assert_done(call(alfred.main, f"eval.resume={folder}", "eval.launcher=local"))
    assert_same(folder, the_run("one"))


@pytest.mark.slow
def test_a_model_on_a_cluster_decides_as_here(call: Command, cluster: Cluster, tiny_model: Path) -> None:
    setting = (
        "planner=keep", f"model={tiny_model}", "prompt.encoder=hashed", "env.skills=grounded", "env.max_steps=5",
        "eval.episodes=3", "eval.threads=1",
    )  # fmt: skip
    cluster.add_node(num_cpus=1)
    assert_done(call(alfred.main, *setting, "eval.out=one"))
    assert_done(call(alfred.main, *setting, "eval.out=two", *on(cluster, 2)))
    assert_same(the_run("two"), the_run("one"))


@pytest.mark.slow
def test_what_a_node_lacks_is_one_line_that_names_it(call: Command, cluster: Cluster) -> None:
    for arguments, named in (
        (("planner=keep", "model=/no/where"), ["node ", "/no/where"]),
        (("planner=random", "eval.ray.address=127.0.0.1:1"), ["eval.ray.address=127.0.0.1:1", "HOST:PORT"]),
        (("planner=random", "eval.ray.address=x"), ["eval.ray.address=x", "HOST:PORT"]),
        (("planner=random", "eval.workers=2"), ["eval.workers=2", "has it for 1", "add nodes"]),
        (("planner=random", "eval.ray.num_gpus=1"), ["eval.workers=1", "has it for 0", "eval.ray.num_gpus=1"]),
        (("planner=random", "eval.ray.num_cpus=-1"), ["eval.ray.num_cpus=-1", "from 0"]),
    ):
        code, out, err = call(alfred.main, *on(cluster, 1), *arguments)
        assert code == BAD_INPUT and out == "" and err.count("\n") == 1, err
        assert all(word in err for word in named), err
        assert not Path("outputs").exists()


def test_ray_is_an_extra(call: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # importing None fails
    monkeypatch.delitem(sys.modules, "eval.workers.ray_actors", raising=False)
    code, out, err = call(alfred.main, "planner=random", RAY)
    assert (code, out, err.count("\n")) == (BAD_INPUT, "", 1) and "keep-agent[ray]" in err
    assert not Path("outputs").exists()
