"""Ray runs: the same results as a run of one process, even if a node is lost. Two raylets simulate two machines."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partialmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from envs.alfred.thor.servers import descendants
from eval import alfred
from eval.workers.supervisor import Supervisor, WorkerDeath
from keep_agent.guard import BAD_INPUT
from keep_agent.rollout.run_folder import RunFolder
from tests.eval.workers.runs import Command, after_commits, assert_done, assert_refused, assert_same, the_run
from tests.waiting import PATIENCE

if TYPE_CHECKING:
    from ray.cluster_utils import Cluster

RAY = "eval.launcher=ray"
RANDOM = ("planner=random", "eval.episodes=40", "env.skills=grounded", "env.stream=2")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Start a head node with room for one worker."""
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
    assert [actors._capacity({"CPU": 1, "GPU": share}) for share in (0.1, 0.2, 0.3, 1)] == [10, 5, 3, 1]


def lose(monkeypatch: pytest.MonkeyPatch, cluster: Cluster, node: Any) -> None:
    """Remove a node after three episodes, with its actors, which would outlive their raylet for a while."""

    def remove() -> None:
        actors = [pid for info in node.all_processes["raylet"] for pid in descendants(info.process.pid)]
        cluster.remove_node(node, allow_graceful=False)
        for pid in actors:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    after_commits(monkeypatch, 3, remove)


def on(cluster: Cluster, workers: int) -> tuple[str, ...]:
    return RAY, f"eval.ray.address={cluster.address}", f"eval.workers={workers}"


def test_a_lost_node_loses_no_episode(call: Command, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_done(call(alfred.main, *RANDOM, "eval.out=one"))
    lose(monkeypatch, cluster, cluster.add_node(num_cpus=1))
    indices, replace = [], Supervisor._replace

    def record_and_replace(supervisor: Supervisor[Any], worker: Any, death: WorkerDeath) -> None:
        if worker in supervisor._busy:
            indices.append(supervisor._busy[worker])
        replace(supervisor, worker, death)

    monkeypatch.setattr(Supervisor, "_replace", record_and_replace)
    assert_done(call(alfred.main, *RANDOM, "eval.out=two", *on(cluster, 2)))
    assert len(indices) == 1 and indices[0] is not None  # the worker died during an episode
    assert_same(the_run("two"), the_run("one"))


@pytest.mark.slow
def test_a_run_without_nodes_is_resumed_locally(
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
def test_a_model_decides_the_same_on_a_cluster(call: Command, cluster: Cluster, tiny_model: Path) -> None:
    setting = (
        "planner=keep", f"model={tiny_model}", "prompt.encoder=hashed", "env.skills=grounded", "env.max_steps=5",
        "eval.episodes=3", "eval.threads=1",
    )  # fmt: skip
    cluster.add_node(num_cpus=1)
    assert_done(call(alfred.main, *setting, "eval.out=one"))
    assert_done(call(alfred.main, *setting, "eval.out=two", *on(cluster, 2)))
    assert_same(the_run("two"), the_run("one"))


@pytest.mark.slow
def test_an_error_on_a_node_is_one_line_that_names_the_node(call: Command, cluster: Cluster) -> None:
    for arguments, words in (
        (("planner=keep", "model=/no/where"), ["node ", "/no/where"]),
        (("planner=random", "eval.ray.address=127.0.0.1:1"), ["eval.ray.address=127.0.0.1:1", "HOST:PORT"]),
        (("planner=random", "eval.ray.address=x"), ["eval.ray.address=x", "HOST:PORT"]),
        (("planner=random", "eval.workers=2"), ["eval.workers=2", "room for 1", "add nodes"]),
        (("planner=random", "eval.ray.num_gpus=1"), ["eval.workers=1", "room for 0", "eval.ray.num_gpus=1"]),
        (("planner=random", "eval.ray.num_cpus=-1"), ["eval.ray.num_cpus=-1", "from 0"]),
    ):
        assert_refused(call(alfred.main, *on(cluster, 1), *arguments), *words)
        assert not Path("outputs").exists()


def test_ray_is_an_extra(call: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # importing None fails
    monkeypatch.delitem(sys.modules, "eval.workers.ray_actors", raising=False)
    assert_refused(call(alfred.main, "planner=random", RAY), "keep-agent[ray]")
    assert not Path("outputs").exists()
