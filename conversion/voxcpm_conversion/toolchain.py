"""coremltools, brought to heel: imported quietly, its progress bars turned into calls of ours."""

from __future__ import annotations

import importlib
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from types import ModuleType
from typing import Any

StageReport = Callable[[str, int, int], None]
"""report(stage, done, total): which pass over the program runs, and how far it is."""

# Where coremltools 9 binds a progress bar, and under which name.
_PROGRESS_BARS = (
    ("coremltools.converters.mil.frontend.torch.ops", "_tqdm"),
    ("coremltools.converters.mil.mil.passes.pass_pipeline", "tqdm"),
    ("coremltools.optimize.coreml._quantization_passes", "tqdm"),
    ("coremltools.optimize.coreml._post_training_quantization", "tqdm"),
)


def import_coremltools() -> ModuleType:
    """coremltools without its warnings about untested versions and absent Mac libraries."""
    logging.getLogger("coremltools").setLevel(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = importlib.import_module("coremltools")
    logging.getLogger("coremltools").setLevel(logging.ERROR)
    return module


@contextmanager
def stages_reported(report: StageReport) -> Iterator[None]:
    """While open, coremltools' bars call `report`, and its warnings do not reach the terminal."""

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
