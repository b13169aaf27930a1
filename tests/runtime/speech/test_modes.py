"""`generate`, `design` and `clone`: the mode that arguments select, compared with the library's call."""

import dataclasses

import numpy as np
import pytest
import soundfile

from voxcpm_runtime.audio.pcm import pcm16
from voxcpm_runtime.commands import cli
from voxcpm_runtime.options import GenerationOptions
from voxcpm_runtime.voxcpm import VoxCPM

second_generation = pytest.mark.parametrize("architecture", ["voxcpm2"], indirect=True)


@pytest.fixture
def folder(folder):
    """The working directory, with two recordings and a transcript."""
    rng = np.random.default_rng(0)
    for name in ("prompt.wav", "voice.wav"):
        soundfile.write(name, rng.uniform(-0.5, 0.5, 100), 1000, subtype="FLOAT")
    (folder / "prompt.txt").write_text("so it is.\n", encoding="utf-8")
    return folder


def spoken(command, bundle, *options):
    """The samples of the file that the command writes, int16."""
    given = [*command.split(), bundle, *options, "--seed", "3", "--quiet", "-o", "spoken.wav"]
    assert cli.main(given) == 0
    samples, _ = soundfile.read("spoken.wav", dtype="int16")
    return samples


def expected(bundle, *arguments, **options):
    return pcm16(VoxCPM.from_bundle(bundle).generate(*arguments, seed=3, **options))


PROMPT = ["--prompt", "prompt.wav", "--prompt-text", "so it is."]
REFERENCE = ["--reference", "voice.wav"]
CONTROL = ["--control", " low, slow "]

MODES = {
    "zero-shot": ([], ["hello."], ["generate", "design"]),
    "voice design": (CONTROL, ["(low, slow)hello."], ["generate", "design"]),
    "reference": (REFERENCE, ["hello.", None, None, "voice.wav"], ["generate", "clone"]),
    "style control": (
        [*REFERENCE, *CONTROL],
        ["(low, slow)hello.", None, None, "voice.wav"],
        ["generate", "clone"],
    ),
    "continuation": (PROMPT, ["hello.", "prompt.wav", "so it is."], ["generate", "clone"]),
    "combined": (
        [*PROMPT, *REFERENCE],
        ["hello.", "prompt.wav", "so it is.", "voice.wav"],
        ["generate", "clone"],
    ),
}


@second_generation
@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("mode", "command"), [(mode, command) for mode, (*_, commands) in MODES.items() for command in commands]
)
def test_each_mode_is_one_command(speaking, mode, command):
    options, arguments, _ = MODES[mode]
    np.testing.assert_array_equal(
        spoken(command, speaking, "--text", "hello.", *options), expected(speaking, *arguments)
    )


@second_generation
@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    "options",
    [
        ["--text", "hello.", "--prompt", "prompt.wav", "--prompt-file", "prompt.txt", *REFERENCE],
        ["-t", "hello.", "-pa", "prompt.wav", "-pt", "so it is.", "--reference-audio=voice.wav"],
    ],
)
def test_upstreams_flag_names_and_transcript_file(speaking, options):
    np.testing.assert_array_equal(
        spoken("clone", speaking, *options),
        expected(speaking, "hello.", "prompt.wav", "so it is.", "voice.wav"),
    )


OPTIONS = {
    "cfg_value": (["--cfg-value", "1.5"], 1.5),
    "inference_timesteps": (["--inference-timesteps", "5"], 5),
    "fast": (["--fast"], True),
    "temperature": (["--temperature", "0.5"], 0.5),
    "sway_sampling_coef": (["--sway-sampling-coef", "0"], 0.0),
    "use_cfg_zero_star": (["--no-cfg-zero-star"], False),
    "min_len": (["--min-len", "3"], 3),
    "max_len": (["--max-len", "5"], 5),
    "retry_badcase": (["--no-retry"], False),
    "retry_badcase_max_times": (["--retry-times", "2"], 2),
    "retry_badcase_ratio_threshold": (["--retry-ratio", "0.5"], 0.5),
    "normalize": (["--normalize"], True),
    "strict": (["--strict"], True),
    "trim_silence_vad": (["--trim-silence"], True),
    "every_word": (["--no-every-word"], False),
    "zero_shot": (["--zero-shot"], True),
    "segment_tokens": (["--segment-tokens", "9"], 9),
    "paragraph_pause": (["--paragraph-pause", "1.5"], 1.5),
    "speed": (["--speed", "1.5"], 1.5),
    "markup": (["--markup"], True),
}


@pytest.mark.usefixtures("folder")
def test_each_generation_option_reaches_the_library_and_has_its_default(speaking, monkeypatch):
    given = []

    def observed(self, plan):
        given.append(plan.options)
        return speak(self, plan)

    speak = VoxCPM.speak_plan
    monkeypatch.setattr(VoxCPM, "speak_plan", observed)
    flags = [flag for flags, _ in OPTIONS.values() for flag in flags]
    spoken("generate", speaking, "--text", "hello.")
    spoken("generate", speaking, "--text", "hello.", *flags)
    # Not with markup.
    spoken("generate", speaking, "--text", "hello.", "--clean", "markdown")
    chosen = {name: value for name, (_, value) in OPTIONS.items()}
    assert given == [GenerationOptions(), GenerationOptions(**chosen), GenerationOptions(clean="markdown")]
    assert {*chosen, "clean"} == {field.name for field in dataclasses.fields(GenerationOptions)}


ANY = [
    ("generate", ["--text", "a", *PROMPT, "--prompt-file", "prompt.txt"], "one of --prompt-text and --prompt-file"),
    ("generate", ["--text", "a", *PROMPT[:2]], "got the audio without the transcript"),
    ("generate", ["--text", "a", *PROMPT[:2], "--prompt-file", "nowhere.txt"], "nowhere.txt: cannot be read"),
    ("design", ["--text", "a", "-pa", "prompt.wav", "-pt", "x"], "got --prompt, --prompt-text; use clone"),
    ("clone", ["--text", "a"], "clone needs a recording: --reference, or --prompt"),
    ("clone", [*REFERENCE], "to speak it, use --text"),
]  # fmt: skip
OF_A_GENERATION = {
    "voxcpm2": [
        ("generate", ["--text", "a", *PROMPT, *CONTROL], "control cannot be used together with a prompt"),
        ("design", ["--text", "a", "--control", "low) high"], "unmatched parenthesis"),
        ("generate", ["--text", "hello there.", "--min-len", "400"], "but the KV cache has 48"),
        ("clone", ["--text", "a", "--reference", "prompt.txt"], "expected an audio file"),
    ],
    "voxcpm": [
        ("generate", ["--text", "a", *CONTROL], "control (voice design, style control) needs VoxCPM2"),
        ("generate", ["--text", "a", *REFERENCE], "a reference voice needs VoxCPM2"),
    ],
}


def test_invalid_arguments_fail_in_one_line_before_loading(bundle_folder, folder, refusal, architecture):
    """This bundle has none. Options that no bundle supports are rejected before one is opened."""
    of_this = OF_A_GENERATION[architecture.generation]
    before = set(folder.iterdir())
    for bundle, refusals in (("nowhere", ANY), (str(bundle_folder), of_this)):
        for command, options, message in refusals:
            assert message in refusal(command, bundle, *options)
            assert set(folder.iterdir()) == before
