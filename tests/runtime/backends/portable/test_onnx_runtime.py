import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from voxcpm_constants.errors import SYSTEM_ERRORS, BundleError, system_reason
from voxcpm_runtime.backends import machine
from voxcpm_runtime.backends.portable.onnx_runtime import ERRORS, errors, ort
from voxcpm_runtime.backends.portable.sessions import _session, session_errors

RUN = """
import sys
import numpy as np
from pathlib import Path
from voxcpm_runtime.backends.portable import PortableStepModel
print(*PortableStepModel(Path(sys.argv[1]))({"x": np.ones(4, np.float32)}).values())
"""
ASK = "import os, voxcpm_runtime.backends.portable; print(os.environ['ORT_DISABLE_TELEMETRY'])"


def run(program, home, *arguments, **variables):
    """The output of a program for a new user without settings."""
    kept = {k: v for k, v in os.environ.items() if k not in {"ORT_DISABLE_TELEMETRY", "XDG_CACHE_HOME"}}
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        env={**kept, "PYTHONPATH": os.pathsep.join(sys.path), "HOME": str(home), **variables},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def package(lab):
    path: Path = lab.package(lambda x: lab.mb.add(x=x, y=np.float32(1)), {"x": np.ones(4, np.float32)})
    return path


def test_running_a_step_model_queues_no_telemetry_unless_the_user_asked(package, tmp_path):
    """From 1.31 on, ONNX Runtime starts telemetry on import."""
    assert run(RUN, tmp_path, package) == "[2. 2. 2. 2.]\n"
    assert not [path for path in tmp_path.rglob("*") if "microsoft" in path.name.lower()]
    assert run(ASK, tmp_path, ORT_DISABLE_TELEMETRY="0").strip() == "0"


MODELS, MEGABYTES = 6, 64
"""Sessions, and the size of the one temporary tensor that each needs."""
ARENA = f"""
import gc, os
from pathlib import Path

import numpy as np
from onnx import parser

from voxcpm_runtime.backends.portable.lowered import Lowered
from voxcpm_runtime.backends.portable.sessions import open_on_processor

def megabytes():
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6

model = parser.parse_model('''<ir_version: 9, opset_import: ["" : 18]>
one_large_tensor (int64[1] shape) => (float sum) {{
    large = ConstantOfShape (shape)
    sum = ReduceSum <keepdims = 0> (large)
}}''')
lowered = Lowered(model.SerializeToString(), (), (), (), 0, {{}}, ())
sessions = [open_on_processor(Path("a.mlpackage"), lowered, "faithful", 1)[0] for _ in range({MODELS})]
before = megabytes()
for session in sessions:
    session.run(None, {{"shape": np.array([{MEGABYTES} * 250_000], np.int64)}})
print(megabytes() - before)
"""


CORES = """
import os, sys
from pathlib import Path
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from voxcpm_runtime.backends.portable import PortableStepModel
model = PortableStepModel(Path(sys.argv[1]))
for task in os.listdir("/proc/self/task"):
    print(*os.sched_getaffinity(int(task)), sep=",")
"""


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="reads /proc, and asks Linux for each thread's cores"
)
def test_sequential_models_share_memory_and_threads_stay_on_allowed_cores(package, tmp_path):
    """In subprocesses: an arena never shrinks, and ONNX Runtime's default is a thread pinned to each core."""
    grown = float(run(ARENA, tmp_path))
    assert MEGABYTES <= grown < MODELS / 2 * MEGABYTES, f"{MODELS} models have come to {grown:.0f} MB"
    assert set(run(CORES, tmp_path, package).split()) == {str(min(os.sched_getaffinity(0)))}


@pytest.mark.parametrize(
    ("own", "limit", "expected"),
    [
        ("0::/", "250000 100000", 2),
        ("0::/", "50000 100000", 1),
        ("0::/", "1200000 100000", None),
        ("12:cpu:/\n0::/user.slice/app", "300000 100000", 3),
        ("12:cpu:/", "200000 100000", None),
    ],
)
def test_cpu_quota_limits_threads(tmp_path, monkeypatch, own, limit, expected):
    """The limit of a container's control group on a machine with eight cores."""
    groups = tmp_path / "cgroup"
    groups.write_text(own)
    folder = tmp_path / own.rsplit("0::/", maxsplit=1)[-1] if "0::/" in own else tmp_path
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cpu.max").write_text(limit)
    monkeypatch.setattr(machine, "_CGROUPS", tmp_path)
    monkeypatch.setattr(machine, "_OWN_CGROUP", groups)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(machine, "cores", lambda: 8)
    assert machine.fair_threads() == expected


PTHREAD = (
    "/onnxruntime_src/onnxruntime/core/platform/posix/env.cc:327 PosixThread::PosixThread(...) pthread_create failed, "
    "error code: {} error msg: {}\n"
)
NO_MEMORY, NO_THREADS = "not enough memory", "the system cannot start more threads"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (errors.InvalidArgument("Failed to load model with error: std::bad_alloc"), NO_MEMORY),
        (errors.RuntimeException("BFCArena: Failed to allocate memory for 7 bytes"), NO_MEMORY),
        (RuntimeError(PTHREAD.format(12, "Cannot allocate memory")), NO_MEMORY),
        (RuntimeError(PTHREAD.format(11, "Resource temporarily unavailable")), NO_THREADS),
        # All others are the package's; ONNX Runtime raises those of bound inputs as plain RuntimeError.
        (errors.InvalidGraph("no such operator"), "or its cache entry is"),
        (RuntimeError("Error in execution: ScatterND"), "or its cache entry is"),
    ],
)
def test_failures_are_attributed_to_the_system_or_the_package(error, line):
    with pytest.raises((*SYSTEM_ERRORS, BundleError)) as raised, session_errors(Path("a.mlpackage")):
        raise error
    assert line in (str(raised.value) if "cache" in line else system_reason(raised.value))


def test_a_failing_node_prints_nothing(capfd):
    """By default ONNX Runtime logs it in colours, besides raising it."""
    from onnx import TensorProto, helper

    kinds = {"x": TensorProto.FLOAT, "shape": TensorProto.INT64, "y": TensorProto.FLOAT}
    x, shape, y = (helper.make_tensor_value_info(name, kind, [None]) for name, kind in kinds.items())
    graph = helper.make_graph([helper.make_node("Reshape", ["x", "shape"], ["y"])], "main", [x, shape], [y])
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    session = _session(model, ort.SessionOptions())
    with pytest.raises(ERRORS):
        session.run(None, {"x": np.zeros(3, np.float32), "shape": np.array([2], np.int64)})
    assert capfd.readouterr() == ("", "")
