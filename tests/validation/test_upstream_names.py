"""The table of upstream's calls, arguments, attributes and flags in docs/python.md, checked against upstream."""

import argparse
import ast
import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import typer

from voxcpm_runtime import InputError, VoxCPM
from voxcpm_runtime.bundle.opening import open_bundle
from voxcpm_runtime.commands import cli
from voxcpm_runtime.model.driver import Driver
from voxcpm_runtime.options import DEFAULT_MAX_LEN, UPSTREAM_ORDER, GenerationOptions
from voxcpm_validation.upstream import VERSION, import_upstream

MANUAL = Path(__file__).resolve().parents[2] / "docs" / "python.md"
STATES = ("the same", "accepted", "not supported", "other")
COMMANDS = ("design", "clone", "batch", "validate")
RECORDINGS = ("text", "prompt_wav_path", "prompt_text", "reference_wav_path")


def table(marker):
    """The table's entry of each name. A semicolon separates the names in a row, a comma those of one flag."""
    _, between, _ = re.split(rf"<!-- /?{marker} -->", MANUAL.read_text(encoding="utf-8"))
    rows = [line.strip("| ").split(" | ", 1) for line in between.strip().splitlines()[2:]]
    pairs = [(name, state) for names, state in rows for name in names.replace("`", "").split("; ")]
    named = dict(pairs)
    assert len(named) == len(pairs)
    assert all(state.startswith(STATES) for state in named.values())
    return named


def state(name, marker="upstream"):
    return next(word for word in STATES if table(marker)[name].startswith(word))


@pytest.fixture(scope="module")
def upstream():
    module = import_upstream()
    assert VERSION == "2.0.3", "look through the table in docs/python.md, and its text, for the new release"
    return module.VoxCPM


@pytest.fixture(scope="module")
def parser(upstream):  # noqa: ARG001 - the stubs are there
    return importlib.import_module("voxcpm.cli")._build_parser()


def arguments(function):
    found = dict(inspect.signature(function).parameters)
    return {name: parameter for name, parameter in found.items() if name not in ("self", "cls")}


def calls(upstream):
    """Upstream's public methods; `generate` and `generate_streaming` hand everything to a private one."""
    public = {name: getattr(upstream, name) for name in vars(upstream) if not name.startswith("_")}
    methods = {name: method for name, method in public.items() if callable(method)}
    spoken = dict.fromkeys(("generate", "generate_streaming"), upstream._generate)
    return {"VoxCPM": upstream.__init__, **methods, **spoken}


def attributes(upstream):
    source = ast.parse(Path(inspect.getfile(upstream)).read_text(encoding="utf-8"))
    assigned = {
        node.attr
        for node in ast.walk(source)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and ast.unparse(node.value) == "self"
    }
    return assigned | {name for name, value in vars(upstream).items() if isinstance(value, property)}


def test_table_lists_every_argument_and_attribute(upstream):
    names = attributes(upstream)
    for call, function in calls(upstream).items():
        given = [f"{call}({name})" for name in arguments(function)]
        names.update(given or [f"{call}()"])
    assert set(table("upstream")) == names


def test_positions_and_defaults_equal_upstreams(upstream):
    theirs = arguments(upstream._generate)
    assert list(theirs) == [*RECORDINGS, *UPSTREAM_ORDER, "streaming"]
    for method in (VoxCPM.generate, VoxCPM.speak, VoxCPM.plan, VoxCPM.generate_streaming):
        ours = [
            p.name for p in arguments(method).values() if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
        ]
        assert ours == list(RECORDINGS)
    for name in UPSTREAM_ORDER:
        ours = {"denoise": False, "max_len": DEFAULT_MAX_LEN}.get(
            name, getattr(GenerationOptions(), name, None)
        )
        assert ours == theirs[name].default, name
    pretrained, own = arguments(upstream.from_pretrained), arguments(VoxCPM.from_pretrained)
    pretrained.pop("kwargs")
    assert list(own)[: len(pretrained)] == list(pretrained)
    different = [name for name in pretrained if own[name].default != pretrained[name].default]
    assert different == ["zipenhancer_model_id"]  # there is none
    assert all(own[name].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for name in pretrained)


# Part of an unsupported row → its error message.
REASONS = {
    "VoxCPM": r"VoxCPM\.from_pretrained\(folder\)",
    "lora_config": r"read from lora_config\.json",
    "denoise": "denoise is not supported",
    "streaming": "streaming is not supported: use generate for whole speech, generate_streaming for chunks",
}
NOT_SUPPORTED = [name for name, said in table("upstream").items() if said.startswith("not supported")]
BASES: dict[str, dict[str, Any]] = {"generate": {"text": "hi."}, "generate_streaming": {"text": "hi."}}


@pytest.mark.parametrize("row", NOT_SUPPORTED)
def test_unsupported_arguments_are_one_line_errors(tiny_bundle, row):
    tts = VoxCPM(open_bundle(tiny_bundle), Driver.__new__(Driver))
    call, _, argument = row.rstrip(")").partition("(")
    reason = next((REASONS[word] for word in (call, argument) if word in REASONS), None)
    given = {**BASES.get(call, {}), **({argument: True} if argument else {})}
    with pytest.raises(AttributeError if reason is None else InputError, match=reason or call):
        (VoxCPM if call == "VoxCPM" else getattr(tts, call))(**given)


def test_supported_attributes_exist(upstream):
    for name in attributes(upstream):
        assert hasattr(VoxCPM, name) == (state(name) != "not supported"), name


def test_positional_options_equal_keywords(tiny_bundle):
    tts = VoxCPM(open_bundle(tiny_bundle), Driver.__new__(Driver))
    values = (0, 200, 1, 7, False, False, True, 0, 5.5)
    by_name = dict(zip(UPSTREAM_ORDER, values, strict=True))
    for count in range(len(values) + 1):
        by_position = tts.plan("hello.", None, None, None, *values[:count]).options
        assert by_position == tts.plan("hello.", **dict(list(by_name.items())[:count])).options
    with pytest.raises(InputError, match="denoise is not supported"):
        tts.plan("hello.", None, None, None, 2.0, 10, 2, None, False, True)
    with pytest.raises(TypeError, match="multiple values for argument"):
        tts.plan("hello.", None, None, None, 2.0, cfg_value=2.0)
    with pytest.raises(TypeError, match="at most 9 positional options"):
        tts.plan("hello.", None, None, None, *values, True)


def flags(parser):
    """Command -> the joined names of each flag -> the flag. "" is no command."""
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    found = {"": parser, **commands.choices}
    return {
        command: {
            ", ".join(action.option_strings): action
            for action in one._actions
            if action.option_strings and action.dest != "help"
        }
        for command, one in found.items()
    }


def test_table_lists_every_flag(parser):
    assert set(table("upstream-flags")) == {name for of_one in flags(parser).values() for name in of_one}


@pytest.mark.parametrize("command", COMMANDS)
def test_flags_match_the_table(parser, command, refusal, tmp_path):
    (tmp_path / "me.wav").write_bytes(b"")
    (tmp_path / "lines.txt").write_text("Yes.")
    whole = {
        "design": ("--text", "a"),
        "clone": ("--text", "a", "--prompt", str(tmp_path / "me.wav"), "--prompt-text", "a"),
        "batch": (str(tmp_path / "lines.txt"), "-o", str(tmp_path / "out")),
    }
    ours = {
        name: parameter
        for parameter in typer.main.get_command(cli.build_app(command)).commands[command].params
        for name in parameter.opts
    }
    for names, action in flags(parser)[command].items():
        said = state(names, "upstream-flags")
        for name in names.split(", "):
            if said == "not supported":
                value = [] if action.nargs == 0 else ["1"]
                line = refusal(command, *whole.get(command, ()), name, *value)
                why = "denoise is not supported" if name == "--denoise" else "No such option: -"
                assert line.startswith(f"error: {why}"), line
            else:
                assert name in ours, name
                assert ours[name].is_flag == (action.nargs == 0), name
                assert said == "the same" or ours[name].hidden, name
