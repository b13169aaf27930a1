"""coremltools without its output: warnings are suppressed, and progress bars become calls of a function."""

from __future__ import annotations

import importlib
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from types import ModuleType
from typing import Any

TOOLS = ("coremltools", "torch", "numpy", "voxcpm-coreml")
"""The distributions whose versions determine a package."""

StageReport = Callable[[str, int, int], None]
"""report(stage, done, total): the current pass over the program, and how many of its items are done."""

# The modules in which coremltools 9 uses a progress bar, and its name there.
_PROGRESS_BARS = (
    ("coremltools.converters.mil.frontend.torch.ops", "_tqdm"),
    ("coremltools.converters.mil.mil.passes.pass_pipeline", "tqdm"),
    ("coremltools.optimize.coreml._quantization_passes", "tqdm"),
    ("coremltools.optimize.coreml._post_training_quantization", "tqdm"),
)


@contextmanager
def silenced() -> Iterator[None]:
    """A context without warnings and logs of any library."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def import_coremltools() -> ModuleType:
    """Import coremltools without its warnings about untested versions and missing macOS libraries, nor torchao's."""
    with silenced():
        module = importlib.import_module("coremltools")
    logging.getLogger("coremltools").setLevel(logging.ERROR)
    return module


@contextmanager
def stages_reported(report: StageReport) -> Iterator[None]:
    """A context in which coremltools' progress bars call `report`, and its warnings are suppressed."""

    def bar(items: Iterable[Any], desc: str = "", **_: Any) -> Iterator[Any]:
        total = len(items) if isinstance(items, Sized) else 0
        for done, item in enumerate(items):
            report(desc, done, total)
            yield item
        report(desc, total, total)

    import_coremltools()
    bound = [(importlib.import_module(module), name) for module, name in _PROGRESS_BARS]
    before = [getattr(module, name) for module, name in bound]
    for module, name in bound:
        setattr(module, name, bar)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for (module, name), original in zip(bound, before, strict=True):
            setattr(module, name, original)
