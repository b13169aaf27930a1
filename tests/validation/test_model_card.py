import pytest

from voxcpm_runtime.commands import cli
from voxcpm_validation import validate
from voxcpm_validation.end_to_end import EndToEnd
from voxcpm_validation.measures import Agreement
from voxcpm_validation.report import ValidationReport, add_to_model_card
from voxcpm_validation.step_agreement import StepAgreement

CARD = "# Mine\n\n<!-- validation -->\nNot validated yet.\n<!-- /validation -->\n\nThe end.\n"


def agreement(correlation):
    return Agreement(correlation=correlation, max_abs_error=0.5, snr_db=20.0, finite=True)


@pytest.fixture
def report():
    steps = [
        StepAgreement(
            step_model=name, precision=precision, arithmetic=arithmetic, floors_of=precision, calls=4,
            outputs={"x": agreement(r)},
        )
        for name, precision, arithmetic, r in (
            ("feat_encoder", "fp16", "plain", 0.9999999),
            ("feat_encoder", "fp16", "faithful", 0.25),
            ("feat_encoder", "int8", "plain", 0.987654321),
            ("locdit_step", "fp16", "plain", 0.5),
            ("locdit_step", "int8", "plain", 0.75),
        )
    ]  # fmt: skip
    spoken = EndToEnd(
        case="zero-shot", precision="int8", patches=12, upstream_patches=12,
        free_running_latents=agreement(0.98), waveform=agreement(0.91), teacher_forced_worst=0.99,
        teacher_forced_median=0.999,
    )  # fmt: skip
    return ValidationReport(
        bundle="/home/me/bundle",
        checkpoint="mine",
        tools={"voxcpm": "2.0.3"},
        steps=tuple(steps),
        end_to_end=(spoken,),
    )


@pytest.fixture
def bundle(tmp_path):
    (tmp_path / "README.md").write_text(CARD)
    return tmp_path


def test_command_writes_correlations_into_the_card(bundle, report, monkeypatch, capsys):
    monkeypatch.setattr(validate, "validate_bundle", lambda *_, **__: report)
    # A figure is below its floor.
    assert cli.main(["validate", str(bundle), "--checkpoint", "mine"]) == 1
    assert "README.md" in "".join(capsys.readouterr().err.split())
    card = (bundle / "README.md").read_text()
    assert "| step model | fp16 | int8 |" in card
    assert "| feat_encoder | 1.000000 | 0.987654 |" in card
    assert "| locdit_step | 0.500000 | 0.750000 |" in card
    assert "| zero-shot | int8 | 12 | 0.980000 | 0.910000 |" in card
    assert "- Below its floor: locdit_step fp16 plain" in card
    assert card.startswith("# Mine\n")
    assert card.endswith("\nThe end.\n")
    # Cards are published, so they must not contain local paths.
    assert "/home/me" not in card


def test_linked_or_unwritable_card_is_left_unchanged(bundle, report, monkeypatch, capsys):
    (bundle / "README.md").rename(bundle / "blob")
    (bundle / "README.md").symlink_to(bundle / "blob")
    assert not add_to_model_card(bundle, report)

    def refused(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(validate, "validate_bundle", lambda *_, **__: report)
    monkeypatch.setattr("voxcpm_validation.report.add_to_model_card", refused)
    assert cli.main(["validate", str(bundle), "--checkpoint", "mine"]) == 1
    assert "(Permission denied)" in " ".join(capsys.readouterr().err.split())
    assert (bundle / "blob").read_text() == CARD
