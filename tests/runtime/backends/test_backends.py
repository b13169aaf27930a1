import plistlib
from types import SimpleNamespace

import numpy as np
import pytest

from voxcpm_constants.core_ml_errors import core_ml_reason
from voxcpm_constants.errors import BundleError
from voxcpm_constants.macos import macos
from voxcpm_constants.step_models import BASE_LM_STEP, FEAT_ENCODER, LOCDIT_STEP, declare_step_models
from voxcpm_runtime.backends.core_ml.step_model import CoreMLStepModel
from voxcpm_runtime.backends.loading import arithmetic_key, load_step_models
from voxcpm_runtime.bundle.opening import open_bundle


def test_a_mac_has_a_version_and_a_build(monkeypatch, tmp_path):
    path = tmp_path / "SystemVersion.plist"
    path.write_bytes(plistlib.dumps({"ProductVersion": "15.5", "ProductBuildVersion": "24F74"}))
    monkeypatch.setattr("voxcpm_constants.macos.SYSTEM_VERSION_FILE", path)
    system = macos()
    assert (system.version, system.build, str(system)) == ((15, 5), "24F74", "macOS 15.5")
    # A Python built on an older SDK reads 16.0 in SystemVersion.plist where the system is macOS 26.
    described = {"ProductVersion": "26.1", "ProductBuildVersion": "25B78"}
    (tmp_path / ".SystemVersionPlatform.plist").write_bytes(plistlib.dumps(described))
    assert str(macos()) == "macOS 26.1"


PRINTED = """{
    NSLocalizedDescription = "Couldn\\U2019t open \\"x\\".\\nMore.";
    NSUnderlyingError = "Error Domain=com.apple.CoreML Code=-1 \
\\"ANECCompile(\\\\\\"a\\\\\\") FAILED\\" UserInfo={NSLocalizedDescription=no}";
}"""


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (PRINTED, 'Couldn’t open "x". ANECCompile("a") FAILED'),
        ("{\n}", "Core ML gives no reason: { }"),
        ("array is not writeable\nmore", "array is not writeable"),
    ],
)
def test_description_is_extracted_from_a_printed_dictionary(said, reason):
    assert core_ml_reason(RuntimeError(said)) == reason


def test_unusable_package_is_a_one_line_error(bundle_folder):
    pytest.importorskip("voxcpm_runtime.backends.portable")
    with pytest.raises(BundleError, match=r"feat_encoder.mlpackage: cannot be run here"):
        load_step_models(open_bundle(bundle_folder), "portable", names=(FEAT_ENCODER,))


@pytest.mark.parametrize("form", ["passed", "rows", "native"])
def test_rows_of_a_cache_are_read_and_overwritten(architecture, sizes, form):
    """A voice's prefix needs this, in either form of Core ML's state; the rest of the cache stays unchanged."""
    model = declare_step_models(architecture, sizes)[BASE_LM_STEP]
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
    np.testing.assert_array_equal(state.rows(0, 48)[name].sum(), ones.sum())


def test_arithmetic_has_a_key(monkeypatch):
    """One for all step models on the portable backend, and for each unit of each one on Core ML.

    Processors have their own, as a voice's saved prefix must not be reused with other arithmetic.
    """
    units = [{LOCDIT_STEP: "all"}, {LOCDIT_STEP: "cpu"}, {LOCDIT_STEP: "portable"}]
    units += [{**units[0], FEAT_ENCODER: "portable"}, {**units[0], FEAT_ENCODER: "all"}]
    assert len(set(map(arithmetic_key, units))) == 5
    assert arithmetic_key({FEAT_ENCODER: "portable"}) == (own := arithmetic_key(units[2]))
    sessions = pytest.importorskip("voxcpm_runtime.backends.portable.sessions")
    exact = sessions.has_exact_signed_products()
    monkeypatch.setattr(sessions, "has_exact_signed_products", lambda: not exact)
    assert arithmetic_key(units[2]) != own
