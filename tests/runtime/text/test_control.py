import pytest

from upstream_module import upstream_module
from voxcpm_constants.errors import InputError
from voxcpm_runtime.text.control import ControlledCutter, described, with_control, without_control


@pytest.fixture(scope="module")
def upstreams_cli():
    return upstream_module("cli.py")


@pytest.mark.parametrize("text", ["Hello.", "(slow) Hello."])
@pytest.mark.parametrize("control", [None, " \n", "  warm, slow ", "warm (a bit) voice"])
def test_control_is_formatted_as_by_upstream(upstreams_cli, text, control):
    assert with_control(text, described(control)) == upstreams_cli.build_final_text(text, control)


def test_enclosing_parentheses_are_not_doubled_and_unbalanced_ones_rejected():
    same = {
        "warm": "warm",
        " ( warm ) ": "warm",
        "（(warm)）": "warm",
        "(warm) (slow)": "(warm) (slow)",
        "(())": "",
    }
    assert {control: described(control) for control in same} == same
    for control in ("warm) loud", "warm（", ")warm("):
        with pytest.raises(InputError, match="unmatched parenthesis") as caught:
            described(control)
        assert repr(control) in str(caught.value)


def test_control_is_stripped_from_a_text():
    for control in ("warm (a bit) voice", "温柔（一点）"):
        for text in ("Hello (you).", "", "No :) no"):
            assert without_control(with_control(text, control)) == text
    for text in ("", "Hello (you).", "(never closed", ") no ("):
        assert without_control(text) == text


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("(Warm.) Hello there. You.", ["(Warm.) Hello there. ", "You."]),
        (f"({'He is old. ' * 40}) Hello. You.", [f"({'He is old. ' * 40}) Hello. ", "You."]),
        ("(Warm.)", ["(Warm.)"]),
        ("(Hello there. You.", ["(Hello there. You."]),
        ("Hello (you). You.", ["Hello (you). ", "You."]),
    ],
)
def test_streamed_sentences_keep_the_leading_control_whole(text, sentences, size):
    cutter = ControlledCutter()
    found = [one for at in range(0, len(text), size) for one in cutter.push(text[at : at + size])]
    assert [one.text for one in (*found, *cutter.flush())] == sentences
