import numpy as np
import pytest

from voxcpm_runtime.model.flow_matching import solve

torch = pytest.importorskip("torch")
pytest.importorskip("voxcpm_validation.upstream")


@pytest.fixture(scope="module")
def upstream_cfm():
    from voxcpm_validation.upstream import import_upstream

    import_upstream()
    from voxcpm.modules.locdit.unified_cfm import CfmConfig, UnifiedCFM

    return lambda estimator, mean_mode: UnifiedCFM(4, CfmConfig(), estimator, mean_mode)


def estimator_arrays(x, mu, t, cond, dt):
    """Velocity that depends on every input, in float64 so that both sides round the same way."""
    x, mu, t, cond, dt = (np.asarray(array, np.float64) for array in (x, mu, t, cond, dt))
    row = mu.sum(axis=1) + 3 * t + 7 * dt
    return np.sin(x * 1.7 + cond * 0.3 + row[:, np.newaxis, np.newaxis]).astype(np.float32)


# Of four entries the second is sin(time / 10), from which the time can be read again.
EMBEDDING_SIZE = 4


def ours(inputs):
    """The estimator, as our solver calls it."""
    t, dt = (10 * np.arcsin(inputs[name][:, 1]) for name in ("t_embedding", "dt_embedding"))
    return {"velocity": estimator_arrays(inputs["x"], inputs["mu"], t, inputs["cond"], dt)}


class TorchEstimator(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x, mu, t, cond, dt):
        self.calls += 1
        return torch.from_numpy(estimator_arrays(*(array.numpy() for array in (x, mu, t, cond, dt))))


@pytest.mark.parametrize("mean_mode", [False, True])
@pytest.mark.parametrize(
    ("steps", "options"),
    [
        *((steps, {"cfg_value": cfg_value}) for steps in (1, 2, 10, 49) for cfg_value in (1.0, 2.0)),
        (10, {"cfg_value": 2.0, "sway_sampling_coef": -1.0}),
        (10, {"cfg_value": 2.0, "use_cfg_zero_star": False}),
        (10, {"cfg_value": 2.0, "sway_sampling_coef": 0.5, "use_cfg_zero_star": False}),
    ],
)
def test_patch_equals_upstream(upstream_cfm, steps, options, mean_mode, monkeypatch):
    rng = np.random.default_rng(steps)
    noise, mu, cond = (rng.standard_normal(shape).astype(np.float32) for shape in [(4, 3), (5,), (4, 3)])
    theirs = TorchEstimator()
    monkeypatch.setattr(torch, "randn", lambda *_, **__: torch.from_numpy(noise[np.newaxis].copy()))
    given = {"mu": torch.from_numpy(mu[np.newaxis]), "cond": torch.from_numpy(cond[np.newaxis])}
    expected = upstream_cfm(theirs, mean_mode)(
        **given, n_timesteps=steps, patch_size=3, temperature=0.7, **options
    ).numpy()[0]
    calls = []

    def estimator(inputs):
        calls.append({name: array.dtype for name, array in inputs.items()})
        return ours(inputs)

    scaled = noise * np.float32(0.7)  # the driver's part
    given = {"steps": steps, "mean_mode": mean_mode, "embedding_size": EMBEDDING_SIZE}
    patch = solve(estimator, scaled, mu, cond, **given, **options)
    assert len(calls) == theirs.calls
    assert all(dtype == np.float32 for call in calls for dtype in call.values())
    assert patch.dtype == np.float32
    np.testing.assert_allclose(patch, expected, rtol=0, atol=2e-6)
