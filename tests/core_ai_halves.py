"""Small torch modules in halves on Apple's Core AI runtime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn

from voxcpm_conversion.core_ai.toolchain import import_module, quiet
from voxcpm_runtime.backends.core_ai_calls import awaited


def on_core_ai(module: nn.Module, given: Sequence[Tensor], folder: Path) -> list[npt.NDArray[np.float16]]:
    """The outputs of a module, a tuple, for positional inputs in halves; skips where Core AI's packages have no wheels.

    folder: for the program.
    """
    pytest.importorskip("coreai_torch", exc_type=ImportError)
    folder.mkdir(exist_ok=True)
    inputs = [f"in_{index}" for index in range(len(given))]
    with quiet():
        exported = torch.export.export(module.eval(), tuple(given))
        coreai_torch = import_module("coreai_torch")
        exported = exported.run_decompositions(coreai_torch.get_decomp_table())
        outputs = [f"out_{index}" for index in range(len(exported.graph_signature.user_outputs))]
        converter = coreai_torch.TorchConverter()
        converter.add_exported_program(
            exported, entrypoint_name="main", input_names=inputs, output_names=outputs
        )
        asset = converter.to_coreai().save_asset(folder / "halves.aimodel")

    async def called() -> list[npt.NDArray[np.float16]]:
        array = import_module("coreai.runtime").NDArray
        async with asset.executable() as model:
            main = model.load_function("main")
            found = await main(
                {name: array(tensor.numpy()) for name, tensor in zip(inputs, given, strict=True)}
            )
            return [np.array(found[name].numpy()) for name in outputs]

    return awaited(called())
