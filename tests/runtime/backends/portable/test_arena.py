"""The memory of step models on the processor is one arena's, not one for each."""

from __future__ import annotations

import subprocess
import sys

import pytest

MODELS = 6
MEGABYTES = 64
"""The size of the one tensor that each of the models needs while it computes."""
CHILD = f"""
import gc, os
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper

from voxcpm_runtime.backends.portable.lowered import Lowered
from voxcpm_runtime.backends.portable.sessions import open_on_processor

def megabytes():
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6

size = {MEGABYTES} * 250_000
graph = helper.make_graph(
    [
        helper.make_node("ConstantOfShape", ["shape"], ["large"]),
        helper.make_node("ReduceSum", ["large"], ["sum"], keepdims=0),
    ],
    "one large tensor",
    [helper.make_tensor_value_info("shape", TensorProto.INT64, [1])],
    [helper.make_tensor_value_info("sum", TensorProto.FLOAT, [])],
)
model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)])
lowered = Lowered(model.SerializeToString(), (), (), (), 0, {{}}, ())
sessions = [open_on_processor(Path("a.mlpackage"), lowered, "faithful", 1)[0] for _ in range({MODELS})]
before = megabytes()
for session in sessions:
    session.run(None, {{"shape": np.array([size], np.int64)}})
print(megabytes() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_models_that_compute_one_after_the_other_use_the_same_memory() -> None:
    """In a process of its own: what a model has once had, its arena keeps."""
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    grown = float(done.stdout)
    assert MEGABYTES <= grown < MODELS / 2 * MEGABYTES, f"{MODELS} models have come to {grown:.0f} MB"
