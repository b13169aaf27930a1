"""Linear layers and transposed convolutions as the convolutions that Core AI computes halves with."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from voxcpm_constants.architecture import Architecture
from voxcpm_conversion.core_ai.convolutions import LinearConvolution, PhasesConvolution, use_convolutions
from voxcpm_conversion.modules.audio_vae import CausalConvTranspose1d, Contexts
from voxcpm_conversion.modules.voxcpm import empty_modules
from voxcpm_conversion.synthetic_presets import presets


@pytest.mark.parametrize("shape", [(2, 8), (1, 1, 8), (3, 5, 8)], ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_a_convolution_of_width_one_is_the_linear_layer(shape: tuple[int, ...], bias: bool) -> None:
    torch.manual_seed(0)
    linear, x = nn.Linear(8, 6, bias=bias), torch.randn(shape)

    torch.testing.assert_close(LinearConvolution(linear)(x), linear(x))


@pytest.mark.parametrize("stride", [2, 3, 7])
def test_a_convolution_of_phases_is_the_transposed_one(stride: int) -> None:
    torch.manual_seed(0)
    transposed, context = CausalConvTranspose1d(6, 4, stride), torch.randn(1, 6, 1)
    x = torch.randn(1, 6, 5)
    before, after = Contexts((context,)), Contexts((context,))

    torch.testing.assert_close(PhasesConvolution(transposed)(x, after), transposed(x, before))
    torch.testing.assert_close(after.after, before.after)


def test_every_matrix_product_with_weights_is_replaced() -> None:
    modules = empty_modules(Architecture.model_validate(presets()["tiny-2"]))
    before = {name: weight.numel() for name, weight in modules.named_parameters()}
    use_convolutions(modules)

    assert not [m for m in modules.modules() if isinstance(m, (nn.Linear, nn.ConvTranspose1d))]
    # Weights keep their names, by which the recipes choose formats; only biases of phases are repeated.
    after = {name: weight.numel() for name, weight in modules.named_parameters()}
    assert before.keys() == after.keys()
    assert {name for name in before if before[name] != after[name]} == {
        f"audio_vae.decoder.model.{block}.block.1.bias" for block in range(2, 6)
    }
