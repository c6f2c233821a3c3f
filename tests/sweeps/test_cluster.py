"""Sweeps on Ray: a local cluster of two nodes that loses a worker and then a node."""

import signal
import sys
import time

import psutil
import pytest
from tiny_models import tiny

import interp
from interp.errors import InputError
from interp.sweeps.cluster import _LOOPBACK, RayExecutor

SETTINGS = {"rows": 48}


def ours():
    return [*psutil.Process().children(recursive=True)]


def test_without_ray_the_message_says_what_to_install(monkeypatch):
    for name in _LOOPBACK:
        monkeypatch.setenv(name, "")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match="pip install 'interp"):
        RayExecutor()


@pytest.mark.slow
def test_a_cluster_that_loses_a_worker_and_a_node_writes_the_same_bytes(tmp_path, monkeypatch):
    for name, value in _LOOPBACK.items():
        monkeypatch.setenv(name, value)
    pytest.importorskip("ray", reason="ray is not installed")
    from ray.cluster_utils import Cluster

    for number in range(8):
        model = tiny("gpt2")
        for weight in model.parameters():
            weight.data *= 1 + number
        model.save_pretrained(tmp_path / "run" / f"checkpoint-{number}")
    alone = interp.sweep(tmp_path / "run", out=tmp_path / "alone", **SETTINGS)
    nodes = {"num_cpus": 1, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=nodes)
    try:
        second = cluster.add_node(num_cpus=1)
        handler = lambda *_: None  # noqa: E731
        signal.signal(signal.SIGTERM, handler)
        done = []

        def progress(number, _):
            done.append(number)
            if number == 2:
                workers = [p for p in ours() if "_called" in " ".join(p.cmdline())]
                assert workers
                workers[0].kill()
            if number == 4:
                cluster.remove_node(second, allow_graceful=False)

        with RayExecutor(cluster.address) as executor:
            listening = [
                connection.laddr.ip.removeprefix("::ffff:")
                for process in ours()
                for connection in process.net_connections()
                if connection.status == psutil.CONN_LISTEN
            ]
            assert signal.getsignal(signal.SIGTERM) == handler
            options = {"executor": executor, "progress": progress, **SETTINGS}
            swept = interp.sweep(tmp_path / "run", out=tmp_path / "ray", **options)
    finally:
        cluster.shutdown()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    assert set(listening) == {"127.0.0.1"}
    assert done[-1] == 8
    assert swept.to_frame().equals(alone.to_frame())
    for path in (tmp_path / "alone").rglob("part-*"):
        assert (tmp_path / "ray" / path.relative_to(tmp_path / "alone")).read_bytes() == (
            path.read_bytes()
        )
    time.sleep(1)
    assert not [p for p in ours() if "ray" in p.name()]
