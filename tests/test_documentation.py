import contextlib
import json
import math
import re
import runpy
import shlex
import sys
from collections import Counter

import numpy as np
import pytest
import soundfile
import typer

from documents import BY_NAME, CARDS, DOCUMENTS, MANUALS, REPOSITORY, blocks, parsed, run_python
from voxcpm_constants.architecture import Architecture
from voxcpm_constants.arrays import constant_shapes
from voxcpm_constants.step_models import (
    BASE_LM_STEP,
    AlignmentHead,
    StepSizes,
    declare_step_models,
)
from voxcpm_constants.targets import package_form
from voxcpm_conversion.cli import PRESETS
from voxcpm_conversion.synthetic_presets import presets
from voxcpm_runtime import VoxCPM
from voxcpm_runtime.commands import cli
from voxcpm_runtime.model.driver import Driver
from voxcpm_runtime.model.sequence import build_sequence
from voxcpm_runtime.options import GenerationOptions, option_table

PROGRAM = "voxcpm-coreml"
# Commands that are only parsed, and why.
NOT_RUN = {
    "convert": "would download gigabytes",
    "validate": "minutes of upstream's code",
    "listen": "minutes of a recogniser",
    "publish": "would upload to the hub",
    "benchmark": "starts processes to time them",
    "serve": "ends only when it is told to",
}
BOOK = "It was late. Nobody said a word.\n\nThe sun came out.\n"


def commands(path):
    """Each shell command of this project as words, without comments and pipes."""
    for block in blocks(path):
        if block.language in ("python", "swift", "json"):
            continue
        for line in block.code.replace("\\\n", " ").splitlines():
            if line.startswith((f"{PROGRAM} ", "python generate_coreml.py ", "make ")):
                words = shlex.shlex(line, posix=True, punctuation_chars="|>")
                words.whitespace_split = True
                yield list(_before_pipe(words))


def _before_pipe(words):
    for word in words:
        if word in ("|", ">"):
            return
        yield word


def program_arguments(words):
    """The arguments of `voxcpm-coreml`; None for another program."""
    return words[1:] if words[0] == PROGRAM else None


def script_options():
    """The options of `generate_coreml.py`."""
    return set(
        re.findall(
            r'add_argument\("(--[a-z-]+)"', (REPOSITORY / "generate_coreml.py").read_text(encoding="utf-8")
        )
    )


def options(command):
    """Long names of all options, including subcommands' but not hidden ones."""
    own = {
        name
        for parameter in command.params
        if not getattr(parameter, "hidden", False)
        for name in (*parameter.opts, *parameter.secondary_opts)
        if name.startswith("--")
    }
    return own.union(*(options(verb) for verb in getattr(command, "commands", {}).values()))


def identifier(path):
    return path.relative_to(REPOSITORY).as_posix()


@pytest.mark.parametrize("document", DOCUMENTS, ids=identifier)
def test_every_command_parses(document):
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    targets = {*re.findall(r"^([a-z-]+):", makefile, re.MULTILINE), "test-core-ai", "test-robustness"}
    for words in commands(document):
        arguments = program_arguments(words)
        if words[0] == "python":
            assert {word for word in words[2:] if word.startswith("--")} <= script_options(), words
            continue
        if arguments is None:
            assert {word for word in words[1:] if "=" not in word} <= targets, words
            continue
        assert arguments[0] in cli.commands(), words
        try:
            parsed(arguments)
        except Exception as error:  # noqa: BLE001 - click's, of whichever copy typer uses
            pytest.fail(f"{shlex.join(words)}: {error}")


def test_documented_options_match_the_command_line():
    known = set().union(
        *(options(typer.main.get_command(cli.build_app(name)).commands[name]) for name in cli.commands())
    ) - {"--help"}
    known |= script_options()
    named = {
        path.name: set(re.findall(r"`(--[a-z][a-z0-9-]*)", path.read_text(encoding="utf-8")))
        for path in MANUALS
    }
    assert known - set().union(*named.values()) == set()
    assert named["command-line.md"] - known - {"--help", "--version"} == set()
    for name in cli.commands():
        assert f"| [`{name}`](#" in BY_NAME["command-line.md"].read_text(encoding="utf-8"), name


def options_table():
    """The expected table of generation options."""
    rows = ["| option | default | range | meaning |", "|---|---|---|---|"]
    for name, _, default, option in option_table():
        low, high = option.bounds or (None, None)
        span = "" if low is None else f"{low:g} to {high:g} {option.unit}".strip()
        shown = option.default if default is None else default
        rows.append(f"| `{name}` | {shown} | {span} | {option.help} |")
    return "\n".join(rows)


def test_options_table_matches_the_code():
    text = BY_NAME["python.md"].read_text(encoding="utf-8")
    _, between, _ = re.split(r"<!-- /?options -->", text)
    # To fix it, copy the expected table.
    assert between.strip() == options_table()


class Counted:
    """A step model that returns zeros, and counts its calls with the tensors that each takes and returns."""

    releases_gil = True

    def __init__(self, declared, form, counts):
        self._declared, self._counts, self._form = declared, counts, form

    def new_state(self):
        return object()

    def __call__(self, inputs, state=None):  # noqa: ARG002
        declared, form = self._declared, self._form
        tensor, axis = declared.chunk_axis
        called = declared.at(declared.chunk_lengths.index(inputs[tensor.name].shape[axis]))
        passed = called.state if form.state == "passed" else ()
        caches = passed if called.has_caches else ()
        self._counts.update({
            "calls": 1, "inputs": len(called.inputs + passed), "outputs": len(called.outputs + passed),
            "caches among both": len(caches), "states": len(called.state) - len(passed),
            "size of these caches, each way": sum(2 * math.prod(t.shape_at(0)) for t in caches),
        })  # fmt: skip
        return {t.name: np.zeros(t.shape_at(0), np.float32) for t in called.outputs}


def counted_patch(size, preset):
    """What a patch after the first takes with `convert`'s defaults; the loop is the runtime's."""
    a, counts = Architecture.model_validate(presets()[size]), Counter[str]()
    sizes = StepSizes(solver_steps=preset.solver_steps, alignment=(AlignmentHead(0, 0, 0.0, 1.0),))
    declared = declare_step_models(a, sizes, stacked=preset.kv_cache == "stacked")
    models = {
        name: Counted(model, package_form(model, preset.target, preset.kv_cache), counts)
        for name, model in declared.items()
    }
    constants = {stem: np.zeros(shape, np.float32) for stem, shape in constant_shapes(a).items()}
    driver, sequence = Driver(a, sizes, constants, models), build_sequence([1], (a.patch_size, a.feat_dim))
    prefilled, decode = driver.prefill(sequence), driver.patch_decoder(sequence)
    given = GenerationOptions(min_len=2, max_len=2), np.random.default_rng(0), 2
    for patch in driver.generate_patches(prefilled, *given, ends=lambda *_: False):
        decode(patch.latents)
        if not patch.index:  # Its language models ran in the prefill
            counts.clear()
    return counts


def test_what_a_patch_takes_in_each_preset_matches_the_code():
    columns = {
        f"{size.upper()}, {name}": counted_patch(size, preset)
        for size in ("0.5b", "1.5", "2")
        for name, preset in PRESETS.items()
    }
    rows = [f"| a patch | {' | '.join(columns)} |", "|---" * (1 + len(columns)) + "|"]
    for kind in next(iter(columns.values())):
        counts = (counted[kind] for counted in columns.values())
        shown = (f"{n / 1e6:.1f} MB" if kind.startswith("size") else str(n) for n in counts)
        rows.append(f"| {kind} | {' | '.join(shown)} |")
    _, between, _ = re.split(r"<!-- /?calls -->", BY_NAME["bundle.md"].read_text(encoding="utf-8"))

    # To fix it, copy the expected table.
    assert between.strip() == "\n".join(rows)


class Brief:
    """A base LM that stops every utterance at the minimum, as random weights never would."""

    releases_gil = True

    def __init__(self, model):
        self._model = model

    def new_state(self):
        return self._model.new_state()

    def __call__(self, inputs, state=None):
        outputs = dict(self._model(inputs, state))
        outputs["stop_logits"] = np.zeros_like(outputs["stop_logits"]) + np.array([0, 1], np.float32)
        return outputs


@pytest.fixture
def workplace(tmp_path, tiny_bundle, second_bundle, monkeypatch):
    """A working directory with the files that the examples use."""
    (tmp_path / "voxcpm-1.5").symlink_to(tiny_bundle)
    (tmp_path / "voxcpm-2").symlink_to(second_bundle)
    soundfile.write(tmp_path / "me.wav", np.sin(np.arange(640) / 10) / 2, 16000)
    (tmp_path / "book.txt").write_text(BOOK, encoding="utf-8")
    (tmp_path / "names.tsv").write_text("nguyen\twin\nSIG\tsig\n", encoding="utf-8")
    (tmp_path / "lines.txt").write_text("One.\n\nTwo.\n", encoding="utf-8")
    shown = [
        line
        for block in blocks(BY_NAME["command-line.md"])
        for line in block.code.splitlines()
        if line.startswith("{")
    ]
    assert shown
    assert all(json.loads(line) for line in shown)
    (tmp_path / "lines.jsonl").write_text("\n".join(shown), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VOXCPM_COREML_VOICES", str(tmp_path / "voices"))
    monkeypatch.setattr("voxcpm_runtime.voxcpm.pretrained_bundle", lambda *_, **__: tiny_bundle)
    open_bundle = VoxCPM.from_bundle.__func__

    def from_bundle(cls, *arguments, **named):
        tts = open_bundle(cls, *arguments, **named)
        tts.driver.models[BASE_LM_STEP] = Brief(tts.driver.models[BASE_LM_STEP])
        return tts

    monkeypatch.setattr(VoxCPM, "from_bundle", classmethod(from_bundle))
    return tmp_path


def run_command(words, monkeypatch):
    if words[0] == PROGRAM:
        return cli.main(words[1:])
    monkeypatch.setattr(sys, "argv", words[1:])
    monkeypatch.setattr(sys, "path", [*sys.path])
    return runpy.run_path(str(REPOSITORY / words[1]))["main"]()


@pytest.mark.converts
@pytest.mark.parametrize("document", DOCUMENTS, ids=identifier)
def test_commands_run(document, request, monkeypatch, capfdbinary):
    runnable = [
        words
        for words in commands(document)
        if (arguments := program_arguments(words)) is not None
        and arguments[0] not in NOT_RUN
        and "--ray" not in arguments  # needs a cluster
    ]
    if not runnable:
        pytest.skip("no commands that run here")
    request.getfixturevalue("workplace")
    for words in runnable:
        code = run_command(words, monkeypatch)
        told = capfdbinary.readouterr()
        assert code == 0, f"{shlex.join(words)}: {told.err.decode()}"


@pytest.mark.converts
@pytest.mark.parametrize(
    "document", [d for d in DOCUMENTS if not d.name.startswith("server")], ids=identifier
)
def test_python_runs(document, request):
    """The server's manuals: tests/server/test_serve_command.py."""
    if not any(block.language == "python" for block in blocks(document)):
        pytest.skip("no Python")
    request.getfixturevalue("workplace")
    heard = []
    names = run_python(document, play=heard.append)
    with contextlib.suppress(KeyError):
        names["tts"].close()
    assert all(len(samples) for samples in heard)
    assert heard or "play(" not in document.read_text(encoding="utf-8")


def prose(path):
    """A document without its code."""
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.sub(
        r"`[^`\n]*`", lambda code: "x" * len(code[0]), re.sub(r"^    .*$", "", text, flags=re.MULTILINE)
    )


def headings(path):
    text = path.read_text(encoding="utf-8")
    return re.findall(
        r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE
    )


def anchors(path):
    """A document's link targets: ids, and headings as GitHub spells them."""
    slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings(path)}
    return slugs | set(re.findall(r'<a id="([^"]+)">', path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("document", [*DOCUMENTS, *CARDS], ids=identifier)
def test_no_section_is_repeated(document):
    assert len(set(headings(document))) == len(headings(document))


def test_trials_keep_their_form():
    trials, archived = (
        re.split(r"^## ", path.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
        for path in (REPOSITORY / "TRIALS.md", BY_NAME["trials-archive.md"])
    )
    assert len(trials) <= 25
    for entry in trials + archived:
        assert re.match(r"20\d\d-\d\d-\d\d( to [\d-]+)? · .+\? \(.+\)\n", entry), entry
    for entry in trials:
        parts = re.findall(r"^\*\*(Tried|Result|Decision)", entry, re.MULTILINE)
        assert parts == ["Tried", "Result", "Decision"], entry
    for entry in archived:
        assert len(re.sub("<a id=.*", "", entry.partition("\n")[2]).strip().splitlines()) <= 5, entry


@pytest.mark.parametrize("document", [*DOCUMENTS, *CARDS], ids=identifier)
def test_links_resolve(document):
    text = prose(document)
    defined = dict(re.findall(r"^\[([^\]]+)\]: (\S+)$", text, re.MULTILINE))
    missing = [name for name in re.findall(r"\]\[([^\]]+)\]", text) if name not in defined]
    assert missing == []
    for target in [*re.findall(r"\]\(([^)\s]+)\)", text), *defined.values()]:
        if re.match(r"https?:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = document.parent / path if path else document
        assert linked.exists(), target
        assert REPOSITORY in linked.resolve().parents, target
        assert not anchor or anchor in anchors(linked), target
