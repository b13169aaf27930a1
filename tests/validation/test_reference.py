from __future__ import annotations

import numpy as np
import pytest

from voxcpm_constants.step_models import StepModel, TensorSpec
from voxcpm_validation.reference import cut_calls, cut_plan


@pytest.mark.parametrize(
    ("units", "single", "expected"),
    [
        (21, 4, [16, 1, 1, 1, 1, 1]),
        (36, 4, [16, 16, 1, 1, 1, 1]),
        (3, 4, [1, 1, 1]),
        (90, 10, [64, 16, *[1] * 10]),
    ],
)
def test_plan(units: int, single: int, expected: list[int]) -> None:
    assert cut_plan(units, (1, 16, 64), single) == expected


def test_cut_along_the_enumerated_axis_with_positions() -> None:
    declared = StepModel(
        name="m",
        inputs=(
            TensorSpec(name="audio", shape=(1, 1, (2, 4)), meaning=""),
            TensorSpec(name="position", shape=(1,), dtype="int32", meaning=""),
        ),
        outputs=(TensorSpec(name="frames", shape=(1, (1, 2), 3), meaning=""),),
    )
    audio = np.arange(8.0, dtype=np.float32).reshape(1, 1, 8)
    frames = np.arange(12.0, dtype=np.float32).reshape(1, 4, 3)
    calls = cut_calls(declared, {"audio": audio}, {"frames": frames}, [2, 1, 1])
    assert [call.inputs["audio"].ravel().tolist() for call in calls] == [[0, 1, 2, 3], [4, 5], [6, 7]]
    assert [call.inputs["position"].tolist() for call in calls] == [[0], [2], [3]]
    assert [call.outputs["frames"].shape for call in calls] == [(1, 2, 3), (1, 1, 3), (1, 1, 3)]
    assert calls[1].outputs["frames"].ravel().tolist() == [6, 7, 8]
