from __future__ import annotations

import numpy as np
import pytest

from voxcpm_constants.step_models import StepModel, TensorSpec
from voxcpm_validation.reference import cut_calls, cut_plan


@pytest.mark.parametrize(
    ("units", "single", "expected"),
    [
        (37, 4, [1, 16, 16, 1, 1, 1, 1]),
        (3, 4, [1, 1, 1]),
        (91, 10, [1, 16, 64, *[1] * 10]),
    ],
)
def test_plan(units: int, single: int, expected: list[int]) -> None:
    assert cut_plan(units, (1, 16, 64), single) == expected


def _tensor(name: str, *shape: int | tuple[int, ...]) -> TensorSpec:
    return TensorSpec(name=name, shape=shape, meaning="")


def test_a_language_models_sequence_is_cut_with_positions() -> None:
    lengths = (1, 2)
    declared = StepModel(
        name="base_lm_step",
        inputs=(_tensor("embeddings", 1, lengths, 2), TensorSpec(name="position", shape=(1,), meaning="")),
        outputs=(_tensor("hidden", 1, lengths, 3),),
    )
    embeddings = np.arange(8.0, dtype=np.float32).reshape(1, 4, 2)
    hidden = np.arange(12.0, dtype=np.float32).reshape(1, 4, 3)
    calls = cut_calls(declared, {"embeddings": embeddings}, {"hidden": hidden}, [2, 1, 1])
    assert [call.inputs["embeddings"].ravel().tolist() for call in calls] == [[0, 1, 2, 3], [4, 5], [6, 7]]
    assert [call.inputs["position"].tolist() for call in calls] == [[0], [2], [3]]
    assert [call.outputs["hidden"].shape for call in calls] == [(1, 2, 3), (1, 1, 3), (1, 1, 3)]
    assert calls[1].outputs["hidden"].ravel().tolist() == [6, 7, 8]
