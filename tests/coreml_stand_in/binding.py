"""A fake of the native module `coremltools.libcoremlpython`: compiles, loads and runs models."""

import contextlib
import functools
import hashlib
import importlib.util
import json
import plistlib
import runpy
import shutil
import tempfile
import threading
from pathlib import Path

import numpy as np

from coreml_stand_in.faults import events, meet, told
from coreml_stand_in.inputs import keep

# The newest specification that a system can open, by its major version; later ones open the last.
SPECIFICATIONS = {13: 7, 14: 8, 15: 9, 26: 10}
MODEL_FILE = "Data/com.apple.CoreML/model.mlmodel"
MARK = "coremldata.bin"

# `predict` holds the GIL on a Mac: no two predictions of a process overlap.
_GIL = threading.Lock()


class Model:
    """A loaded model: coremltools' `_MLModelProxy`."""

    def __init__(self, path, unit, function, hints, asset):
        assert asset is None
        # The names of coremltools' values, as the native module gets them.
        assert all(
            (key, value) in {("reshapeFrequency", "Frequent"), ("reshapeFrequency", "Infrequent")}
            for key, value in hints.items()
        )
        self._temporary = None
        if path.endswith(".mlpackage"):
            self._temporary = path = Model.compileModel(path)
        self._compiled = Path(path)
        self._package = _mark(self._compiled)["package"]
        self._unit, self._function = unit, function
        self._running = 0
        spec = _spec(self._compiled / MODEL_FILE)
        _require(spec, self._compiled)
        names = [f.name for f in spec.description.functions]
        if bool(function) and function not in names:
            raise RuntimeError(
                "Failed to load: .functionName property must be nil unless the model type is ML Program."
            )
        use = {"at": "load", "package": self._package, "unit": unit, "function": function}
        if not any(event.items() >= use.items() for event in events()):
            meet("first load", self._package, unit, function)
        meet("load", self._package, unit, function, hints)
        self._chosen = function or spec.description.defaultFunctionName or "main"

    def _executor(self):
        """Created lazily: a child that only loads need not lower the program."""
        return _executor(_digest(self._compiled), self._chosen, self._compiled)

    def __del__(self):
        if getattr(self, "_temporary", None):
            shutil.rmtree(Path(self._temporary).parent, ignore_errors=True)

    @staticmethod
    def maximum_supported_specification_version():
        major = system_version()[0]
        return next(SPECIFICATIONS[known] for known in sorted(SPECIFICATIONS, reverse=True) if known <= major)

    @staticmethod
    def compileModel(path):  # noqa: N802 - Core ML's name
        """Compile into a new temporary folder."""
        package = Path(path)
        if not (package / MODEL_FILE).is_file():
            raise RuntimeError(
                f'Error compiling model: "A valid manifest does not exist at path: {package}".'
            )
        spec = _spec(package / MODEL_FILE)
        _require(spec, package)
        meet("compile", package.stem)
        compiled = Path(tempfile.mkdtemp()) / f"{package.stem}.mlmodelc"
        shutil.copytree(package / "Data", compiled / "Data")
        marked = {"package": package.stem, "digest": _digest(compiled)}
        (compiled / MARK).write_text(json.dumps(marked))
        return str(compiled)

    def get_compiled_model_path(self):
        return str(self._compiled)

    def newState(self):  # noqa: N802 - Core ML's name
        if system_version() < (15,):
            raise RuntimeError("State functionality is only supported on macOS 15+.")
        executor, states = self._executor()
        if not states:
            raise RuntimeError("The model has no state.")
        return State(executor.new_state(), states)

    def predict(self, data, state):
        """Outputs by name. One prediction at a time, and none with a state that is in use."""
        with _alone(self), contextlib.nullcontext() if state is None else _alone(state), _GIL:
            wrong = meet("predict", self._package, self._unit, self._function)
            for name, value in data.items():
                if not isinstance(value, np.ndarray) or value.dtype not in (np.float32, np.int32):
                    raise RuntimeError(
                        f"value type of {name} not convertible: {getattr(value, 'dtype', value)}"
                    )
                # The native module asks for the array's mutable data.
                if not value.flags.writeable:
                    raise ValueError("array is not writeable")
            keep(data, self._package)
            try:
                results = self._executor()[0](data, None if state is None else state.inner)
            except ValueError as error:
                raise RuntimeError(f"Input features do not fit the model description: {error}") from None
            return {name: _given(np.roll(a, 1) if wrong else a) for name, a in results.items()}


class State:
    """Core ML's state: fp16, read as float32."""

    def __init__(self, inner, names):
        self.inner = inner
        self._names = names
        self._running = 0

    def read_state(self, name):
        self._check(name)
        array = self.inner._now[name].copy()
        assert np.array_equal(array, array.astype(np.float16)), "a Core ML state is fp16"
        return _given(array)

    def write_state(self, name, value):
        self._check(name)
        keep({name: value}, "state")
        buffer = self.inner._now[name]
        if value.shape != buffer.shape:
            raise RuntimeError(f"state {name} has shape {buffer.shape}, not {value.shape}")
        buffer[...] = np.asarray(value, np.float16)

    def _check(self, name):
        if name not in self._names:
            raise RuntimeError(f"State feature {name} does not exist.")


@contextlib.contextmanager
def _alone(used):
    used._running += 1
    try:
        assert used._running == 1, f"two predictions with one {type(used).__name__} at the same time"
        yield
    finally:
        used._running -= 1


def system_version():
    described = plistlib.loads(Path(told()["system_version"]).read_bytes())
    return tuple(int(part) for part in described["ProductVersion"].split("."))


def _given(array):
    """The array as Core ML may return it at worst: with padded rows, and read-only."""
    if not array.ndim:
        return array
    padded = np.full((*array.shape[:-1], array.shape[-1] + 3), np.nan).astype(array.dtype)
    padded[..., : array.shape[-1]] = array
    view = padded[..., : array.shape[-1]]
    view.flags.writeable = False
    return view


@functools.cache
def _message():
    """The message class of the portable backend, by its file: the backend's import would take a child half a second."""
    package = Path(importlib.util.find_spec("voxcpm_runtime").origin).parent
    return runpy.run_path(package / "backends" / "portable" / "core_ml_format.py")["Model"]


def _spec(path):
    return _message().FromString(path.read_bytes())


def _require(spec, path):
    newest = Model.maximum_supported_specification_version()
    if spec.specificationVersion > newest:
        raise RuntimeError(
            f'Error compiling model: "Failed to read model package at {path}. Error: Unable to load model with '
            f'specification version {spec.specificationVersion}; this system supports up to {newest}.".'
        )


def _mark(compiled):
    try:
        marked = json.loads((compiled / MARK).read_text())
    except (OSError, ValueError):
        marked = {}
    if not marked or marked["digest"] != _digest(compiled):
        raise RuntimeError(f"Failed to open file: {compiled}/{MARK}. It is not a valid .mlmodelc file.")
    return marked


def _digest(compiled):
    digest = hashlib.sha256()
    for path in sorted(p for p in (compiled / "Data").rglob("*") if p.is_file()):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


@functools.lru_cache(maxsize=64)
def _executor(digest, function, compiled):
    """The portable executor of a function, and the names of its states. digest: of its content, for the cache."""
    from voxcpm_runtime.backends.portable import PortableStepModel
    from voxcpm_runtime.backends.portable.package import read_package

    program = read_package(compiled, function)
    half = any(type_.dtype == "FLOAT16" for op in program.operations for _, type_ in op.outputs)
    states = {state.name: f"{state.name}_out" for state in program.states}
    executor = PortableStepModel(
        compiled,
        cache_key=digest,
        function=function,
        mode="faithful" if half else "plain",
        threads=1,
        state=states,
    )
    return executor, frozenset(states)


_MLModelProxy = Model
