"""Choosing a backend, and what every backend checks."""

import plistlib
from types import SimpleNamespace

import numpy as np
import pytest

from voxcpm_constants.errors import BundleError, InputError, core_ml_reason
from voxcpm_constants.macos import macos
from voxcpm_constants.step_models import BASE_LM_STEP, FEAT_ENCODER, LOCDIT_STEP, declare_step_models
from voxcpm_runtime.backends.choice import choose_backend
from voxcpm_runtime.backends.core_ml.step_model import CoreMLStepModel
from voxcpm_runtime.backends.loading import arithmetic_key, load_step_models
from voxcpm_runtime.bundle.opening import open_bundle


@pytest.fixture
def declared(architecture, sizes):
    return declare_step_models(architecture, sizes)


class Predictor:
    """Returns ones of the right shapes, and caches that count the calls."""

    def __init__(self, declared):
        self.declared = declared
        self.seen = []

    def predict(self, features):
        self.seen.append({name: array.copy() for name, array in features.items()})
        outputs = {t.name: np.ones(t.shape_at(0), np.float16) for t in self.declared.outputs}
        return outputs | {t.output_name: features[t.name] + np.float16(1) for t in self.declared.state}


@pytest.fixture
def on_mac(monkeypatch, tmp_path):
    """The file by which the project knows a Mac."""
    path = tmp_path / "SystemVersion.plist"
    path.write_bytes(plistlib.dumps({"ProductVersion": "15.5", "ProductBuildVersion": "24F74"}))
    monkeypatch.setattr("voxcpm_constants.macos.SYSTEM_VERSION_FILE", path)


@pytest.fixture
def on_linux(monkeypatch, tmp_path):
    monkeypatch.setattr("voxcpm_constants.macos.SYSTEM_VERSION_FILE", tmp_path / "missing.plist")


@pytest.mark.usefixtures("on_linux")
@pytest.mark.parametrize(
    ("backend", "message"), [("coreml", "coreml needs macOS"), ("cuda", "must be one of auto, coreml")]
)
def test_what_this_machine_lacks_is_one_line(backend, message):
    with pytest.raises(InputError, match=message):
        choose_backend(backend)


@pytest.mark.usefixtures("on_mac")
def test_a_mac_has_a_version_and_a_build(tmp_path):
    system = macos()

    assert (system.version, system.build, str(system)) == ((15, 5), "24F74", "macOS 15.5")
    # A Python built on an older SDK reads 16.0 in SystemVersion.plist where the system is macOS 26.
    described = {"ProductVersion": "26.1", "ProductBuildVersion": "25B78"}
    (tmp_path / ".SystemVersionPlatform.plist").write_bytes(plistlib.dumps(described))
    assert str(macos()) == "macOS 26.1"


def test_state_goes_through_a_prediction_as_an_input_and_comes_back(declared):
    predictor = Predictor(declared[BASE_LM_STEP])
    model = CoreMLStepModel(declared[BASE_LM_STEP], predictor)
    state = model.new_state()
    inputs = {"embeddings": np.ones((1, 1, 8)), "position": np.array([3])}

    outputs = model(inputs, state)
    kept = state.numpy("k_cache_00")
    model(inputs, state)

    assert set(outputs) == {"hidden", "fsq_hidden", "stop_logits"}
    assert all(array.dtype == np.float32 for array in outputs.values())
    first, second = predictor.seen
    assert (first["embeddings"].dtype, first["position"].dtype) == (np.float32, np.int32)
    assert first["k_cache_00"].shape == (1, 1, 48, 4)
    # coremltools makes new float32 arrays of float16 ones.
    assert first["k_cache_00"].dtype == np.float32
    assert not first["k_cache_00"].any()
    assert (second["v_cache_00"] == 1).all()
    assert (state.numpy("k_cache_00") == 2).all()
    assert (kept == 1).all()


FAILED = "Failed to build the model execution plan using 'model.mil' with error code: -14."


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (f'{{\n    NSLocalizedDescription = "{FAILED}";\n}}', FAILED),
        (
            (
                f'{{\n    NSLocalizedDescription = "{FAILED}";\n'
                '    NSUnderlyingError = "Error Domain=com.apple.CoreML Code=-1 '
                '\\"ANECCompile(\\\\\\"a\\\\\\") FAILED\\" UserInfo={NSLocalizedDescription=no}";\n}'
            ),
            f'{FAILED} ANECCompile("a") FAILED',
        ),
        (
            (
                '{\n    NSLocalizedDescription = "Couldn\\U2019t open \\"x\\".\\nMore.";\n'
                '    NSUnderlyingError = "Error Domain=com.apple.CoreML Code=110 \\"(null)\\"";\n}'
            ),
            'Couldn’t open "x".',
        ),
        ("{\n    NSLocalizedDescription = Failed;\n}", "Failed"),
        ("{\n}", "Core ML gives no reason: { }"),
        ("array is not writeable\nmore", "array is not writeable"),
    ],
)
def test_of_a_printed_dictionary_the_sentence_is_told(said, reason):
    assert core_ml_reason(RuntimeError(said)) == reason


def test_a_package_that_cannot_be_run_is_one_line(bundle_folder):
    pytest.importorskip("voxcpm_runtime.backends.portable")

    with pytest.raises(BundleError, match=r"feat_encoder.mlpackage: cannot be run here"):
        load_step_models(open_bundle(bundle_folder), "portable", names=(FEAT_ENCODER,))


@pytest.mark.parametrize("form", ["passed", "rows", "native"])
def test_rows_of_a_cache_are_read_and_overwritten(declared, form):
    """A voice's prefix needs this, in either form of Core ML's state; the rest of the cache stays unchanged."""
    model = declared[BASE_LM_STEP]
    arrays = {t.name: np.zeros(t.shape_at(0), np.float16) for t in model.state}
    native = SimpleNamespace(read_state=lambda name: arrays[name], write_state=arrays.__setitem__)
    predictor = SimpleNamespace(make_state=lambda: native)
    state = CoreMLStepModel(model, predictor, state=form).new_state()
    name, shape = model.state[0].name, model.state[0].shape_at(0)
    ones = np.ones((*shape[:2], 3, shape[3]), np.float16)

    state.set_rows(4, {name: ones})

    rows = state.rows(3, 8)
    assert rows.keys() == {t.name for t in model.state}
    np.testing.assert_array_equal(rows[name][0, 0, :, 0], [0, 1, 1, 1, 0])
    np.testing.assert_array_equal(state.numpy(name).sum(), ones.sum())


def test_arithmetic_has_a_key():
    """One for all step models on the portable backend, and for each unit of each one on Core ML."""
    units = [{LOCDIT_STEP: "all"}, {LOCDIT_STEP: "cpu"}, {LOCDIT_STEP: "portable"}]
    units += [{**units[0], FEAT_ENCODER: "portable"}, {**units[0], FEAT_ENCODER: "all"}]

    assert len(set(map(arithmetic_key, units))) == 5
    assert arithmetic_key({FEAT_ENCODER: "portable"}) == arithmetic_key(units[2])


def test_a_step_model_on_the_portable_backend_has_its_lowering_in_the_key(monkeypatch):
    cache = pytest.importorskip("voxcpm_runtime.backends.portable.cache")
    units = [{LOCDIT_STEP: "cpu"}, {LOCDIT_STEP: "portable"}, {LOCDIT_STEP: "portable", FEAT_ENCODER: "cpu"}]
    before = [arithmetic_key(each) for each in units]

    monkeypatch.setattr(cache, "LOWERING_VERSION", cache.LOWERING_VERSION + 1)

    assert [arithmetic_key(each) == key for each, key in zip(units, before, strict=True)] == [
        True,
        False,
        False,
    ]
