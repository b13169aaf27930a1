"""Snake fused with the following depthwise convolution: one GPU kernel each for the forward and backward pass.

The AudioVAE consists mostly of these two. Unfused, especially with cuDNN's depthwise convolution, they would dominate a
training step. On the CPU the same functions are plain PyTorch.
"""

# Triton compiles the kernels and does not use annotations.
# ruff: noqa: ANN001, ANN202
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

try:
    import triton  # type: ignore[import-untyped]
    import triton.language as tl  # type: ignore[import-untyped]
except ImportError:  # CPU builds of PyTorch do not include it
    triton = None

KERNEL = 7
_BLOCK = 1024
# Gradients that the backward pass sums per row: 7 weights, the bias and alpha.
_SUMS = KERNEL + 2


def snake(x: Tensor, alpha: Tensor) -> Tensor:
    """The activation x + sin²(alpha·x) / alpha; x (batch, channels, samples), alpha (1, channels, 1)."""
    if triton is not None and x.is_cuda:
        return _Snake.apply(x, alpha)  # type: ignore[no-untyped-call]
    return x + torch.sin(alpha * x).square() / (alpha + 1e-9)


def snake_depthwise(x: Tensor, alpha: Tensor, weight: Tensor, bias: Tensor, dilation: int) -> Tensor:
    """Causal depthwise convolution of snake(x, alpha): x and result (batch, channels, samples).

    weight (channels, 1, 7), bias (channels,).
    """
    if triton is not None and x.is_cuda:
        return _SnakeDepthwise.apply(x, alpha, weight, bias, dilation)  # type: ignore[no-untyped-call]
    padded = F.pad(snake(x, alpha), ((KERNEL - 1) * dilation, 0))
    return F.conv1d(padded, weight.to(x.dtype), bias.to(x.dtype), dilation=dilation, groups=weight.size(0))


if triton is not None:

    @triton.jit
    def _snake_forward(x_ptr, alpha_ptr, y_ptr, channels, samples, BLOCK: tl.constexpr):
        row = tl.program_id(0).to(tl.int64)
        t = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        alpha = tl.load(alpha_ptr + row % channels)
        x = tl.load(x_ptr + row * samples + t, mask=t < samples, other=0.0).to(tl.float32)
        sine = tl.sin(alpha * x)
        y = x + sine * sine / (alpha + 1e-9)
        tl.store(y_ptr + row * samples + t, y.to(y_ptr.dtype.element_ty), mask=t < samples)

    @triton.jit
    def _snake_backward(
        x_ptr, alpha_ptr, dy_ptr, dx_ptr, sum_ptr, channels, samples, blocks, BLOCK: tl.constexpr
    ):
        row = tl.program_id(0).to(tl.int64)
        block = tl.program_id(1)
        t = block * BLOCK + tl.arange(0, BLOCK)
        alpha = tl.load(alpha_ptr + row % channels)
        x = tl.load(x_ptr + row * samples + t, mask=t < samples, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + row * samples + t, mask=t < samples, other=0.0).to(tl.float32)
        sine, cosine = tl.sin(alpha * x), tl.cos(alpha * x)
        double = 2.0 * sine * cosine
        dx = dy * (1.0 + double)
        tl.store(dx_ptr + row * samples + t, dx.to(dx_ptr.dtype.element_ty), mask=t < samples)
        tl.store(sum_ptr + row * blocks + block, tl.sum(dy * (x * double - sine * sine / alpha) / alpha))

    @triton.jit
    def _depthwise_forward(
        x_ptr, alpha_ptr, weight_ptr, bias_ptr, y_ptr, channels, samples,
        DILATION: tl.constexpr, KERNEL: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        row = tl.program_id(0).to(tl.int64)
        t = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        channel = row % channels
        alpha = tl.load(alpha_ptr + channel)
        y = tl.zeros((BLOCK,), tl.float32) + tl.load(bias_ptr + channel)
        for k in tl.static_range(KERNEL):
            s = t - (KERNEL - 1 - k) * DILATION
            x = tl.load(x_ptr + row * samples + s, mask=(s >= 0) & (s < samples), other=0.0).to(tl.float32)
            sine = tl.sin(alpha * x)
            y += tl.load(weight_ptr + channel * KERNEL + k) * (x + sine * sine / (alpha + 1e-9))
        tl.store(y_ptr + row * samples + t, y.to(y_ptr.dtype.element_ty), mask=t < samples)

    @triton.jit
    def _depthwise_backward(
        x_ptr, alpha_ptr, weight_ptr, dy_ptr, dx_ptr, sum_ptr, channels, samples, blocks,
        DILATION: tl.constexpr, KERNEL: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        row = tl.program_id(0).to(tl.int64)
        block = tl.program_id(1)
        t = block * BLOCK + tl.arange(0, BLOCK)
        channel = row % channels
        alpha = tl.load(alpha_ptr + channel)
        x = tl.load(x_ptr + row * samples + t, mask=t < samples, other=0.0).to(tl.float32)
        sine, cosine = tl.sin(alpha * x), tl.cos(alpha * x)
        s = x + sine * sine / (alpha + 1e-9)
        ds = tl.zeros((BLOCK,), tl.float32)
        sums = sum_ptr + (row * blocks + block) * (KERNEL + 2)
        for k in tl.static_range(KERNEL):
            u = t + (KERNEL - 1 - k) * DILATION
            dy = tl.load(dy_ptr + row * samples + u, mask=u < samples, other=0.0).to(tl.float32)
            ds += tl.load(weight_ptr + channel * KERNEL + k) * dy
            tl.store(sums + k, tl.sum(dy * s))
            if k == KERNEL - 1:
                tl.store(sums + KERNEL, tl.sum(dy))
        double = 2.0 * sine * cosine
        dx = ds * (1.0 + double)
        tl.store(dx_ptr + row * samples + t, dx.to(dx_ptr.dtype.element_ty), mask=t < samples)
        tl.store(sums + KERNEL + 1, tl.sum(ds * (x * double - sine * sine / alpha) / alpha))


class _Snake(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, alpha: Tensor) -> Tensor:
        x = x.contiguous()
        rows, samples = x.size(0) * x.size(1), x.size(2)
        y = torch.empty_like(x)
        _snake_forward[rows, triton.cdiv(samples, _BLOCK)](x, alpha, y, x.size(1), samples, BLOCK=_BLOCK)
        ctx.save_for_backward(x, alpha)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        x, alpha = ctx.saved_tensors
        dy = dy.contiguous()
        batch, channels, samples = x.shape
        blocks = triton.cdiv(samples, _BLOCK)
        dx = torch.empty_like(x)
        sums = torch.empty(batch, channels, blocks, device=x.device)
        _snake_backward[batch * channels, blocks](
            x, alpha, dy, dx, sums, channels, samples, blocks, BLOCK=_BLOCK
        )
        return dx, sums.sum((0, 2)).view_as(alpha)


class _SnakeDepthwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, alpha: Tensor, weight: Tensor, bias: Tensor, dilation: int) -> Tensor:  # type: ignore[override]
        x = x.contiguous()
        rows, samples = x.size(0) * x.size(1), x.size(2)
        y = torch.empty_like(x)
        _depthwise_forward[rows, triton.cdiv(samples, _BLOCK)](
            x, alpha, weight, bias, y, x.size(1), samples, DILATION=dilation, KERNEL=KERNEL, BLOCK=_BLOCK
        )
        ctx.save_for_backward(x, alpha, weight)
        ctx.dilation = dilation
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, None]:  # type: ignore[override]
        x, alpha, weight = ctx.saved_tensors
        dy = dy.contiguous()
        batch, channels, samples = x.shape
        blocks = triton.cdiv(samples, _BLOCK)
        dx = torch.empty_like(x)
        sums = torch.empty(batch, channels, blocks, _SUMS, device=x.device)
        _depthwise_backward[batch * channels, blocks](
            x, alpha, weight, dy, dx, sums, channels, samples, blocks,
            DILATION=ctx.dilation, KERNEL=KERNEL, BLOCK=_BLOCK,
        )  # fmt: skip
        total = sums.sum((0, 2))
        return (
            dx, total[:, KERNEL + 1].reshape(alpha.shape), total[:, :KERNEL].reshape(weight.shape),
            total[:, KERNEL], None,
        )  # fmt: skip
