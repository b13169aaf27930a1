"""coremltools without its output: warnings are suppressed, and progress bars become callbacks."""

from __future__ import annotations

import gc
import importlib
import logging
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any
from unittest import mock

TOOLS = ("coremltools", "torch", "numpy", "voxcpm-coreml")
"""The distributions whose versions determine a package."""

StageReport = Callable[[str, int, int], None]
"""report(stage, done, total): the current pass over the program, and how many of its items are done."""

# The progress bars of coremltools 9, in the modules that use them.
_PROGRESS_BARS = (
    "coremltools.converters.mil.frontend.torch.ops._tqdm",
    "coremltools.converters.mil.mil.passes.pass_pipeline.tqdm",
    "coremltools.optimize.coreml._quantization_passes.tqdm",
    "coremltools.optimize.coreml._post_training_quantization.tqdm",
)

_STAGES = {"Frontend": "translating", "pipeline": "optimizing"}
"""Part of a progress bar's description -> what it is called here."""

# Optional imports of coremltools that take two seconds, for kinds of models that this project does not convert.
_UNUSED = ("torchao", "transformers")


@contextmanager
def silenced() -> Iterator[None]:
    """Silence all libraries' warnings and logs."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def import_coremltools() -> ModuleType:
    """Import coremltools without its warnings about untested versions and missing macOS libraries."""
    if "coremltools" not in sys.modules:
        hidden = [name for name in _UNUSED if name not in sys.modules]
        for name in hidden:
            sys.modules[name] = None  # type: ignore[assignment]  # makes an import fail
        try:
            with silenced():
                importlib.import_module("coremltools")
        finally:
            for name in hidden:
                del sys.modules[name]
        # It collects garbage after each export, which would take half a second for torch's modules.
        gc.freeze()
    logging.getLogger("coremltools").setLevel(logging.CRITICAL)  # its errors are exceptions, too
    return sys.modules["coremltools"]


@contextmanager
def exporting(report: StageReport) -> Iterator[None]:
    """Redirect coremltools' progress bars to `report`, suppress its warnings, and skip its checks after each pass.

    It still validates a program before and after all passes. The other checks take a quarter of an export, and only
    find defects in coremltools' own passes.
    """
    import_coremltools()
    from coremltools.converters.mil.mil import Program
    from coremltools.converters.mil.mil.passes.pass_pipeline import PassPipelineManager

    apply = PassPipelineManager.apply_pipeline

    def unchecked(*arguments: Any, **named: Any) -> None:
        with mock.patch.object(Program, "validate"):
            apply(*arguments, **named)

    def bar(items: Iterable[Any], desc: str = "", **_: Any) -> Iterator[Any]:
        desc = next((stage for name, stage in _STAGES.items() if name in desc), "compressing")
        total = len(items) if isinstance(items, Sized) else 0
        for done, item in enumerate(items):
            report(desc, done, total)
            yield item
        report(desc, total, total)

    with warnings.catch_warnings(), ExitStack() as replaced:
        warnings.simplefilter("ignore")
        replaced.enter_context(
            mock.patch.object(PassPipelineManager, "apply_pipeline", staticmethod(unchecked))
        )
        for name in _PROGRESS_BARS:
            replaced.enter_context(mock.patch(name, bar))
        yield
