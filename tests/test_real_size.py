"""VoxCPM 1.5's real size, with synthetic weights: minutes and gigabytes. Run by `make test-slow`."""

import json
import subprocess
import sys
import time

import pytest

from voxcpm_conversion.synthetic import write_synthetic_checkpoint
from voxcpm_validation.validate import validate_bundle

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def checkpoint(shared_data, tmp_path_factory):
    config = json.loads((shared_data / "config" / "voxcpm-1.5.json").read_text())
    folder = tmp_path_factory.mktemp("real") / "checkpoint"
    return write_synthetic_checkpoint(
        folder, config, seed=0, dtype="float16", tokenizer=shared_data / "tokenizer"
    )


@pytest.fixture(scope="module")
def converted(checkpoint):
    """The bundle, the seconds of its conversion, and the peak memory in bytes."""
    bundle = checkpoint.with_name("bundle")
    return bundle, *_convert(checkpoint, bundle, "--precision", "fp16", "--precision", "int8")


# The peak of RUSAGE_CHILDREN would be this process's own: a child has its parent's memory until it begins its program.
_CONVERSION = """
import resource, sys
from pathlib import Path
from voxcpm_runtime.commands.cli import main
code = main(sys.argv[2:])
status = Path("/proc/self/status")
if status.exists():
    (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    peak = int(line.split()[1]) * 1024
else:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
Path(sys.argv[1]).write_text(str(peak))
sys.exit(code)
"""


def _convert(checkpoint, bundle, *options):
    """The seconds of a conversion, and its peak memory in bytes."""
    began, peak = time.perf_counter(), bundle.with_name(f"{bundle.name}-peak")
    command = [sys.executable, "-c", _CONVERSION, peak, "convert", checkpoint, "-o", bundle, *options]
    subprocess.run(command, check=True)
    return time.perf_counter() - began, int(peak.read_text())


@pytest.fixture(scope="module")
def report(converted, checkpoint):
    return validate_bundle(converted[0], str(checkpoint))


def test_conversion_within_six_minutes_and_8_gb(converted):
    _, seconds, peak = converted
    assert seconds < 360
    assert peak < 8e9


def test_fp16_meets_the_published_correlations_and_follows_upstream(report):
    assert report.failures() == []


def test_fp32_speech_equals_upstream(checkpoint):
    from voxcpm_constants.step_models import StepSizes
    from voxcpm_conversion.checkpoint import Checkpoint
    from voxcpm_conversion.convert import convert

    bundle = checkpoint.with_name("bundle-fp32")
    convert(Checkpoint.open(checkpoint), bundle, precisions=["fp32"], sizes=StepSizes())
    report = validate_bundle(bundle, str(checkpoint))
    assert report.failures() == []
    for speech in report.end_to_end:
        assert speech.patches == 12
        assert speech.free_running_latents.correlation >= 0.99999
