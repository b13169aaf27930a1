import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from voxcpm_constants.arrays import EMBED_TOKENS
from voxcpm_constants.errors import BundleError
from voxcpm_constants.manifest import CONSTANTS_FOLDER, Manifest
from voxcpm_constants.step_models import BASE_LM_STEP, LOCDIT_STEP
from voxcpm_constants.vectors import read_vectors, vectors_path


def test_language_models_get_embeddings_of_tokens(tiny_bundle):
    """Noise would show less of a model's errors at the magnitudes that it meets."""
    manifest = Manifest.read(tiny_bundle)
    vectors = read_vectors(tiny_bundle, manifest.step_models[BASE_LM_STEP], manifest.sizes)
    table = np.load(tiny_bundle / CONSTANTS_FOLDER / f"{EMBED_TOKENS}.npy").astype(np.float32)
    table *= manifest.architecture.text_embedding_scale
    for given in vectors["chain/in/embeddings"][:, 0, 0]:
        assert np.abs(table - given).max(axis=1).min() < 1e-2 * np.abs(given).max()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path, arrays: path.write_bytes(b"abc"), "cannot be read"),
        (
            lambda path, arrays: save_file({**arrays, "chain/out/velocity": np.zeros(3)}, path),
            r"expected chain/out/velocity .*, found \(3,\)",
        ),
    ],
)
def test_undeclared_vectors_are_rejected_by_name(tiny_bundle, tmp_path, damage, message):
    manifest = Manifest.read(tiny_bundle)
    path = tmp_path / vectors_path(LOCDIT_STEP)
    path.parent.mkdir()
    arrays = load_file(tiny_bundle / vectors_path(LOCDIT_STEP))
    save_file(arrays, path)
    damage(path, arrays)
    with pytest.raises(BundleError, match=rf"{path}: .*{message}.*convert again"):
        read_vectors(tmp_path, manifest.step_models[LOCDIT_STEP], manifest.sizes)
