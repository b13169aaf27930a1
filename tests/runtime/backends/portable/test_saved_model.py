import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.runtime.backends.portable.test_integer_products import quantized

from voxcpm_runtime.backends.portable import PortableStepModel, sessions
from voxcpm_runtime.backends.portable.onnx_runtime import ort
from voxcpm_runtime.bundle.verified_files import RECORDS_FILE


@pytest.fixture
def package(lab, rng, monkeypatch):
    """A linear layer of 6 kB in int8, which counts as large here."""
    monkeypatch.setattr(sessions, "_MIN_PREPARED_BYTES", 1024)
    weight = rng.standard_normal((64, 96)).astype(np.float32)
    model = lab.convert(lambda x: lab.mb.linear(x=x, weight=weight), {"x": ("float32", (1, 5, 96))})
    return lab.save(quantized(model))


def result(package, key="digest"):
    x = np.random.default_rng(1).standard_normal((1, 5, 96)).astype(np.float32)
    (y,) = PortableStepModel(package, cache_key=key, threads=1)({"x": x}).values()
    return y


def entries(cache):
    return sorted((cache / "compiled").glob("*.ort"))


def test_second_start_reuses_the_saved_model(package, private_cache, monkeypatch):
    plain = result(package, key=None)
    assert not entries(private_cache)
    np.testing.assert_array_equal(result(package), plain)
    (entry,) = entries(private_cache)
    assert {file.name for file in entry.iterdir()} == {sessions.MODEL, sessions.WEIGHTS, RECORDS_FILE}
    opened = []
    session = ort.InferenceSession
    monkeypatch.setattr(
        ort,
        "InferenceSession",
        lambda model, *rest, **named: opened.append(model) or session(model, *rest, **named),
    )
    np.testing.assert_array_equal(result(package), plain)
    assert opened == [str(entry / sessions.MODEL)]


def truncated(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def altered(file):
    file.write_bytes(bytes(byte ^ 0x10 for byte in file.read_bytes()))


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        (sessions.MODEL, truncated),
        (sessions.WEIGHTS, altered),
        (sessions.WEIGHTS, Path.unlink),
        (RECORDS_FILE, truncated),
    ],
)
def test_damaged_model_is_rebuilt(package, private_cache, name, damage):
    plain = result(package)
    (entry,) = entries(private_cache)
    before = (entry / name).stat().st_size
    damage(entry / name)
    np.testing.assert_array_equal(result(package), plain)
    assert (entry / name).stat().st_size == before


def test_other_onnx_runtime_version_replaces_the_saved_model(package, private_cache, monkeypatch):
    plain = result(package)
    (first,) = entries(private_cache)
    monkeypatch.setattr(ort, "__version__", "99.0")
    np.testing.assert_array_equal(result(package), plain)
    (second,) = entries(private_cache)
    assert first.name != second.name


def test_full_disk_runs_without_saving(package, private_cache, monkeypatch):
    plain = result(package, key=None)
    full = shutil.disk_usage("/")._replace(free=0)
    monkeypatch.setattr(sessions.shutil, "disk_usage", lambda _: full)
    with pytest.warns(UserWarning, match="prepared step model cannot be saved"):
        np.testing.assert_array_equal(result(package), plain)
    assert not list((private_cache / "compiled").glob("*.ort*[!k]"))
