"""Transposed convolutions as plain ones."""

from __future__ import annotations

import pytest
import torch

from voxcpm_conversion.core_ai.convolutions import PhasesConvolution
from voxcpm_conversion.modules.audio_vae import CausalConvTranspose1d, Contexts


@pytest.mark.parametrize("stride", [2, 3, 7])
def test_a_convolution_of_phases_is_the_transposed_one(stride: int) -> None:
    torch.manual_seed(0)
    transposed, context = CausalConvTranspose1d(6, 4, stride), torch.randn(1, 6, 1)
    x = torch.randn(1, 6, 5)
    before, after = Contexts((context,)), Contexts((context,))

    torch.testing.assert_close(PhasesConvolution(transposed)(x, after), transposed(x, before))
    torch.testing.assert_close(after.after, before.after)
