from __future__ import annotations

import numpy as np
import pytest
import torch

from voxcpm_conversion.modules.minicpm4 import RMSNorm


@pytest.mark.parametrize("scale", [1e-5, 1e-3, 1.0, 300.0, 3e4])
def test_norm_at_any_scale_equals_the_definition(scale: float) -> None:
    x = scale * torch.randn(4, 256, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    norm = RMSNorm(256, 1e-5)
    weight = torch.linspace(0.5, 2.0, 256)
    norm.load_state_dict({"weight": weight})
    expected = x / torch.sqrt((x**2).mean(-1, keepdim=True) + 1e-5) * weight
    np.testing.assert_allclose(norm(x.float()).detach().numpy(), expected.numpy(), rtol=2e-5, atol=1e-7)


def test_norm_of_fp16_values_that_square_beyond_fp16() -> None:
    x = torch.tensor([[3.0e4, -2.0e4, 5.0, 0.1]])
    norm = RMSNorm(4, 1e-5).half()
    expected = x / torch.sqrt((x**2).mean(-1, keepdim=True) + 1e-5)
    np.testing.assert_allclose(
        norm(x.half()).float().detach().numpy(), expected.numpy(), rtol=3e-3, atol=1e-6
    )
