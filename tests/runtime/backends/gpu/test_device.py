"""The `device` argument: its values, and one-line errors for unusable devices."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from voxcpm_constants.errors import DeviceError, InputError
from voxcpm_runtime.backends.gpu import device
from voxcpm_runtime.backends.gpu.device import Device
from voxcpm_runtime.backends.loading import check_engine, chosen_device, gpu_device


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """driver(gpus, status=0): NVIDIA's driver reports that many GPUs, or an error."""

    def make(gpus: int, status: int = 0) -> None:
        def count(pointer: Any) -> int:
            ctypes.cast(pointer, ctypes.POINTER(ctypes.c_int))[0] = gpus
            return 0

        library = SimpleNamespace(cuInit=lambda _: status, cuDeviceGetCount=count)
        monkeypatch.setattr(device.ctypes, "CDLL", lambda _: library)

    return make


@pytest.fixture
def with_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes ONNX Runtime report the CUDA provider."""
    from voxcpm_runtime.backends.portable.onnx_runtime import ort

    names = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(ort, "get_available_providers", lambda: names)
    monkeypatch.setattr(device, "_load_libraries", lambda: None)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cpu", None),
        ("auto", None),
        ("cuda:3", Device("cuda", 3)),
        ("cuda", Device("cuda", 0)),
    ],
)
def test_device_names(name: str, expected: Device | None) -> None:
    assert gpu_device(name) == expected


@pytest.mark.parametrize("name", ["cuda:x", "CUDA", "", "cpu:0"])
def test_unknown_device_lists_the_choices(name: str) -> None:
    with pytest.raises(InputError) as raised:
        check_engine("portable", None, "auto", device=name)
    assert str(raised.value) == (
        f"device must be auto, cpu, cuda or cuda:N, N a GPU's number from 0, got {name!r}"
    )


@pytest.mark.parametrize(("version", "platform"), [((3, 10), "linux"), ((3, 12), "darwin")])
def test_extra_is_not_suggested_where_unavailable(
    monkeypatch: pytest.MonkeyPatch, version: tuple[int, int], platform: str
) -> None:
    monkeypatch.setattr(
        device,
        "sys",
        SimpleNamespace(version_info=version, platform=platform),
    )
    with pytest.raises(DeviceError, match=r"needs Linux and Python 3\.11 or newer;"):
        check_engine("portable", None, "auto", device="cuda")


@pytest.fixture
def with_libraries(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """with_libraries(missing): the loader's error for the provider's libraries; empty if they load."""
    return lambda missing="": monkeypatch.setattr(device, "_missing_library", lambda: missing)


@pytest.mark.usefixtures("with_cuda")
def test_auto_prefers_the_first_usable_gpu(
    driver: Callable[..., None], with_libraries: Callable[..., None]
) -> None:
    for gpus, status, missing, expected in (
        (2, 0, "", "cuda:0"),
        (0, 0, "", "cpu"),
        (1, 999, "", "cpu"),
        (1, 0, "libcudnn.so.9: cannot open shared object file", "cpu"),
    ):
        driver(gpus, status)
        with_libraries(missing)
        assert chosen_device("auto", "portable") == expected
    driver(1)
    with_libraries()
    assert chosen_device("cpu", "portable") == "cpu"
    assert chosen_device("cuda:7", "portable") == "cuda:7"
    assert (chosen_device("auto", "coreml"), chosen_device("auto", "coreai")) == ("cpu", "cpu")


def test_broken_onnx_runtime_is_a_one_line_error(tmp_path: Path) -> None:
    """What `pip uninstall onnxruntime` leaves of onnxruntime-gpu: a folder without its beginning."""
    for folder in (tmp_path / "onnxruntime", tmp_path / "onnxruntime" / "capi"):
        folder.mkdir()
        (folder / "__init__.py").touch()
    program = "import sys; from voxcpm_runtime.commands.cli import main; sys.exit(main())"
    arguments = ["generate", "--text", "a", "-o", str(tmp_path / "a.wav"), "--device", "cuda"]
    ended = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1), ended.stderr
    assert "ONNX Runtime is only partly installed" in ended.stderr


def test_missing_provider_names_the_extra() -> None:
    with pytest.raises(DeviceError, match=r'pip install "voxcpm-coreml\[cuda\]"') as raised:
        check_engine("auto", None, "auto", device="cuda:9")
    assert "\n" not in str(raised.value)
    assert raised.value.exit_code == 2


@pytest.mark.usefixtures("with_cuda")
def test_missing_gpu_lists_available_ones(driver: Callable[..., None]) -> None:
    driver(2)
    Device("cuda", 1).check()
    with pytest.raises(DeviceError, match=r"--device cuda:9: no such GPU; this machine has cuda:0, cuda:1$"):
        Device("cuda", 9).check()
    driver(0)
    with pytest.raises(DeviceError, match=r"--device cuda:0: no such GPU; this machine has none$"):
        Device("cuda").check()


@pytest.mark.usefixtures("with_cuda")
def test_unresponsive_driver_is_a_one_line_error(driver: Callable[..., None]) -> None:
    driver(1, status=999)
    with pytest.raises(DeviceError, match=r"driver does not respond \(CUDA error 999\)"):
        Device("cuda").check()


def test_missing_driver_names_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_DRIVER", "libcuda-of-no-machine.so.1")
    monkeypatch.setattr("sys.platform", "linux")
    with pytest.raises(DeviceError, match=re.escape("(libcuda-of-no-machine.so.1 cannot be loaded)")):
        device.gpu_count()


def test_other_backends_reject_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("voxcpm_runtime.backends.loading.choose_backend", lambda *_: "coreml")
    with pytest.raises(InputError, match=r"device cuda needs the portable backend, but this is coreml"):
        check_engine("coreml", None, "auto", device="cuda")


def test_cpu_fallback_is_rejected() -> None:
    session = SimpleNamespace(get_providers=lambda: ["CPUExecutionProvider"])
    with pytest.raises(
        DeviceError, match=r"could not load CUDAExecutionProvider \(.*\); install what it needs"
    ):
        Device("cuda").check_provider(session)


def test_out_of_memory_is_a_one_line_error() -> None:
    gpu = Device("cuda", 1)
    with pytest.raises(DeviceError, match=r"--device cuda:1: not enough GPU memory to load a model"):  # noqa: SIM117
        with gpu.memory_checked("load a model"):
            raise RuntimeError(
                "BFCArena: Failed to allocate memory for requested buffer of size 123\nand more"
            )
    with pytest.raises(RuntimeError, match="something else"), gpu.memory_checked("load a model"):
        raise RuntimeError("something else")
