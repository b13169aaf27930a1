"""Our own operators for ONNX Runtime, compiled here, against ONNX Runtime's and against numpy."""

import shutil
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from tests.runtime.backends.portable.test_integer_products import int8_linear, normal

from voxcpm_runtime.backends.portable import PortableStepModel, cache, kernels, sessions
from voxcpm_runtime.backends.portable.cache import load_lowered
from voxcpm_runtime.backends.portable.graph import KERNELS
from voxcpm_runtime.backends.portable.kernels import ROW_PRODUCT, available_operators, kernel_library
from voxcpm_runtime.backends.portable.lowering import IR_VERSION, OPSETS
from voxcpm_runtime.backends.portable.onnx_runtime import ERRORS, ort


@pytest.fixture
def use_kernels(monkeypatch):
    """use_kernels(use=True): whether packages of any size use the operators from then on."""
    if ROW_PRODUCT not in available_operators():
        pytest.skip("no C++ compiler, or a processor without AVX-512 VNNI")
    return lambda use=True: monkeypatch.setattr(cache, "_MIN_KERNEL_BYTES", 0 if use else 1 << 40)


# Below four rows each has two planes of bytes, and always if the product narrows. 6 rows are a group, 16 a tile, and 96
# a block.
@pytest.mark.parametrize("rows", [1, 2, 4, 11, 130])
@pytest.mark.parametrize(("columns", "length"), [(192, 64), (64, 320)])
def test_products_equal_those_of_onnx_runtime_bit_for_bit(lab, rng, use_kernels, rows, columns, length):
    x = normal(rng, 2, rows, length) * np.logspace(-3, 1, rows)[:, None].astype(np.float32)
    x[0, 0] = 0
    package = int8_linear(lab, normal(rng, columns, length), x)
    results = []
    for use, threads in ((False, 1), (True, 1), (True, 2)):
        use_kernels(use)
        assert (b"RowProduct" in load_lowered(package).model) == use
        results += PortableStepModel(package, threads=threads)({"x": x}).values()
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


def test_saved_model_has_the_operators(lab, rng, use_kernels, monkeypatch):
    use_kernels()
    monkeypatch.setattr(sessions, "_MIN_PREPARED_BYTES", 1024)
    x = normal(rng, 1, 5, 128)
    package = int8_linear(lab, normal(rng, 128, 128), x)

    def result():
        return next(iter(PortableStepModel(package, cache_key="digest", threads=1)({"x": x}).values()))

    first = result()
    np.testing.assert_array_equal(result(), first)
    # As by `clear-cache` while a server runs.
    shutil.rmtree(kernel_library().parent)
    np.testing.assert_array_equal(result(), first)


def test_snake(lab, rng, use_kernels):
    use_kernels()
    x, alpha = 8 * normal(rng, 1, 20, 333), np.logspace(-2, 1.5, 20).astype(np.float32)[None, :, None]
    mb = lab.mb

    def snake(x):
        sine = mb.sin(x=mb.mul(x=x, y=alpha))
        return mb.add(x=x, y=mb.mul(x=mb.mul(x=sine, y=sine), y=1 / alpha))

    package = lab.package(snake, {"x": x})
    assert b"Snake" in load_lowered(package).model
    (result,) = PortableStepModel(package, threads=2)({"x": x}).values()
    expected = x + np.sin((alpha * x).astype(np.float64)) ** 2 / alpha
    assert np.abs((result - expected) * np.minimum(alpha, 1)).max() < 2e-6


@pytest.mark.usefixtures("use_kernels")
def test_shapes_that_do_not_fit_are_errors():
    """A damaged package may have such shapes, and ONNX Runtime does not know which ones our operators expect."""
    from onnx import TensorProto, helper

    shapes = {"x": (1, 128), "weight": (1, 16, 64, 4), "scales": (64,), "offsets": (64,)}
    kinds = (TensorProto.FLOAT, TensorProto.INT8, TensorProto.FLOAT, TensorProto.INT32)
    inputs = [
        helper.make_tensor_value_info(name, kind, shape if name != "x" else (1, None))
        for (name, shape), kind in zip(shapes.items(), kinds, strict=True)
    ]
    node = helper.make_node("RowProduct", list(shapes), ["y"], domain=KERNELS, planes=1)
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    model = helper.make_model(
        helper.make_graph([node], "main", inputs, [output]),
        opset_imports=[helper.make_opsetid(*opset) for opset in OPSETS],
        ir_version=IR_VERSION,
    )
    options = ort.SessionOptions()
    options.register_custom_ops_library(str(kernel_library()))
    session = ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    types = dict(zip(shapes, (np.float32, np.int8, np.float32, np.int32), strict=True))
    feeds = {name: np.ones(shape, types[name]) for name, shape in shapes.items()}
    with pytest.raises(ERRORS, match="do not fit"):
        session.run(None, feeds)
    (result,) = session.run(None, {**feeds, "x": np.ones((1, 64), np.float32)})
    assert result.shape == (1, 64)


@pytest.mark.parametrize("missing", ["", "no-such-compiler"])
def test_speech_works_without_a_compiler(missing, compiler, private_cache, monkeypatch):
    compiler(None)
    monkeypatch.setenv("CXX", missing)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert kernels._library.__wrapped__() is None
    assert not list(private_cache.rglob("*.kernels"))


@pytest.mark.usefixtures("private_cache")
@pytest.mark.parametrize(
    ("script", "reasons"),
    [
        # It delays only the first start.
        ("sleep 60 & sleep 60", ["timed out after 1", "did not end at an earlier start; clear-cache"]),
        ("exit 1", ["exit status 1"]),
        (r"printf '\377: error\n' >&2; exit 1", ["\ufffd: error"]),
        ('echo x > "$last"', ["cannot be compiled or loaded"]),
        (None, [r"compiler: Exec format error"]),
    ],
    ids=["hangs", "fails", "other bytes than UTF-8", "no library", "no program"],
)
def test_strange_compilers_are_a_warning(script, reasons, compiler, monkeypatch):
    compiler(script)
    monkeypatch.setattr(kernels, "_COMPILE_SECONDS", 1)
    began = time.monotonic()
    for reason in reasons:
        with pytest.warns(UserWarning, match=reason) as caught:
            assert kernels._library.__wrapped__() is None
        assert len(caught) == 1
    assert time.monotonic() - began < 30


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """compiler(script): the script is the C++ compiler; $last is the library that it should write. None: no program."""

    def use(script):
        path = tmp_path / "compiler"
        path.write_text("?" if script is None else f"#!/bin/sh\nfor last; do :; done\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setenv("CXX", str(path))
        monkeypatch.setattr(kernels, "cpu_features", lambda: ("AVX2",))

    return use


@pytest.mark.parametrize("damage", ["truncated", "flipped", "another"])
def test_damaged_operators_are_compiled_again(damage, compiler, tmp_path):
    if (library := kernel_library()) is None:
        pytest.skip("no C++ compiler")
    good = library.read_bytes()
    (tmp_path / "good.so").write_bytes(good)
    compiler(f'cp {tmp_path / "good.so"} "$last"')
    open_library = kernels._library.__wrapped__
    library = open_library()
    assert library is not None
    bad = {
        "truncated": good[: len(good) // 2],
        "flipped": good[:20000] + bytes([good[20000] ^ 4]) + good[20001:],
        "another": Path(np.random.mtrand.__file__).read_bytes(),
    }[damage]
    library.unlink()  # written in place, it would crash this process, which has loaded it
    library.write_bytes(bad)
    with pytest.warns(UserWarning, match="damaged and compiled again") as caught:
        assert open_library() == library
    assert len(caught) == 1
    assert library.read_bytes() == good
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert open_library() == library
