"""A cluster of two nodes on this machine, and subprocesses that use it."""

import os

import pytest


@pytest.fixture(scope="session")
def bundle():
    """The built-in voice."""
    from voxcpm_runtime.bundle.opening import DEFAULT_BUNDLE

    return DEFAULT_BUNDLE


@pytest.fixture(scope="session")
def cluster():
    """A head without CPUs, so that every line runs on a node that may be killed."""
    pytest.importorskip("ray", reason="needs the extra ray: make test-ray", exc_type=ImportError)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    started = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    yield started
    started.shutdown()


@pytest.fixture(scope="session")
def _alive():
    return []


@pytest.fixture
def nodes(cluster, _alive):
    """Two live nodes with one CPU each; a test that kills one removes it from the list."""
    while len(_alive) < 2:
        _alive.append(cluster.add_node(num_cpus=1))
    return _alive


@pytest.fixture
def started(command_line):
    """Any command, not only a server."""
    return command_line


@pytest.fixture
def listening():
    """listening(server): its URL once it listens; lines of status may precede it."""

    def url(server):
        assert server.stderr is not None
        line = next(line for line in server.stderr if not line.endswith("…\n"))
        assert line.startswith("listening on http://127.0.0.1:"), line + server.stderr.read()
        return line.split()[2]

    return url
