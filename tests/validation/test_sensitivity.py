import pytest

from voxcpm_conversion.default_bundle import DEFAULT_CHECKPOINT
from voxcpm_runtime.voxcpm import VoxCPM
from voxcpm_validation.end_to_end import Case, EndToEnd, compare_speech, speak_upstream
from voxcpm_validation.measures import Agreement
from voxcpm_validation.report import ValidationReport
from voxcpm_validation.sensitivity import Sensitivity, measure_sensitivity
from voxcpm_validation.upstream import load_upstream

TEXTS = ("the river runs slowly to the sea.", "we walked home in the rain.")


@pytest.mark.long
def test_default_bundle_meets_every_floor(speaking_bundle):
    """Judged by upstream's own drift."""
    model = load_upstream(DEFAULT_CHECKPOINT, max_length=128)
    cases = [Case(f"zero-shot {seed}", text, seed, patches=6) for seed, text in enumerate(TEXTS)]
    pairs = [(case, speak_upstream(model, case)) for case in cases]
    drift = tuple(measure_sensitivity(model, "fp16", *pair) for pair in pairs)
    for precision in ("fp32", "fp16", "int8"):
        tts = VoxCPM.from_bundle(speaking_bundle, precision=precision)
        compared = [compare_speech(tts, *pair) for pair in pairs]
        assert report_of(*compared, drift=drift, built_in=True).failures() == []


def sensitivity(case, *, free=1.0, worst=1.0, median=1.0):
    figures = {"free_running": free, "forced_worst": worst, "forced_median": median}
    return Sensitivity(case=case, precision="fp16", disturbance=0.005, **figures)


def spoken(case, *, free=1.0, worst=1.0, median=1.0, precision="fp16"):
    same = Agreement(correlation=free, max_abs_error=0.0, snr_db=100.0, finite=True)
    return EndToEnd(
        case=case, precision=precision, patches=8, upstream_patches=8, free_running_latents=same, waveform=same,
        teacher_forced_worst=worst, teacher_forced_median=median,
    )  # fmt: skip


def report_of(*end_to_end, drift=(), **given):
    whole = {"bundle": "b", "checkpoint": "c", "tools": {}, "steps": (), "sensitivity": tuple(drift), **given}
    return ValidationReport(end_to_end=end_to_end, **whole)


def test_floor_is_three_times_upstreams_distance_from_one_and_clamped():
    measured = sensitivity("continuation")
    assert measured.floor(0.99, 0.999) == pytest.approx(0.97)
    assert measured.floor(1.0, 0.999) == 0.999
    assert measured.floor(0.95, 0.999) == measured.floor(-1.0, 0.999) == 0.9
    # A low median passes down to that of perturbed upstream.
    for median, upstreams, passes in ((0.9998, 0.9997, True), (0.9996, 0.9997, False), (0.9998, 1.0, False)):
        drift = [sensitivity("continuation", median=upstreams)]
        assert (report_of(spoken("continuation", median=median), drift=drift).failures() == []) == passes


def test_continuation_defect_fails_without_a_usable_free_run():
    good, bad = spoken("zero-shot"), spoken("continuation", free=-0.2, worst=0.1, median=0.2)
    report = report_of(good, bad, drift=[sensitivity("continuation", free=0.46226, worst=0.3, median=0.5)])
    (failure,) = report.failures()
    assert "continuation fp16: teacher-forced, median patch" in failure
    assert len(report.unjudged()) == 2
    assert all("continuation fp16" in line and "cannot be judged" in line for line in report.unjudged())
    assert report.unjudged()[0] in report.markdown()


def test_int8_median_has_a_floor_for_the_default_bundle_only():
    low = spoken("zero-shot", median=0.9, precision="int8")
    assert report_of(low, built_in=True).failures() != []
    assert report_of(low).failures() == []
    assert report_of(spoken("zero-shot", median=float("nan"))).failures() != []
    # The drift of one case excuses no other.
    bad = spoken("zero-shot", free=0.99, worst=0.99)
    assert len(report_of(bad, drift=[sensitivity("continuation", free=0.95, worst=0.95)]).failures()) == 2
