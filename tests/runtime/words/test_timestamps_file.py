import json
import re

import pytest

from voxcpm_runtime.commands import cli
from voxcpm_runtime.words.files import timestamps_file
from voxcpm_runtime.words.words import Word


def spoken(text, start=0.0):
    return [Word(word, start + at, start + at + 0.5, "pauses") for at, word in enumerate(text.split())]


def test_subtitles_are_cut_at_sentences_and_after_two_lines():
    text = (
        "Dr. Smith & I left. The old clock in the kitchen of the house by the river struck nine, and nobody of the "
        "family who sat around the table said a single word."
    )
    found = timestamps_file(spoken(text, start=3600), ".srt").decode()
    assert found.split("\n\n")[0] == "1\n01:00:00,000 --> 01:00:04,500\nDr. Smith & I left."
    assert found.split("\n\n")[1].startswith("2\n01:00:05,000 --> 01:00:")
    cues = [cue.split("\n")[2:] for cue in found.strip().split("\n\n")]
    assert " ".join(line for cue in cues for line in cue) == text
    assert all(len(cue) <= 2 and all(len(line) <= 42 for line in cue) for cue in cues)


def test_webvtt_has_its_header_dots_and_escapes_and_no_words_make_empty_files():
    found = timestamps_file(spoken("Tom & Ann."), ".vtt").decode()
    assert found == "WEBVTT\n\n1\n00:00:00.000 --> 00:00:02.500\nTom &amp; Ann.\n"
    assert json.loads(timestamps_file([], ".json")) == {"method": None, "words": []}
    assert timestamps_file([], ".srt") == b""


def test_chinese_characters_are_joined_and_two_columns_wide():
    first, second = "天地玄黄宇宙洪荒日月盈昃辰宿列张寒来暑往秋", "收冬藏"
    words = [Word(char, at, at + 1, "pauses") for at, char in enumerate(first + second)]
    assert timestamps_file(words, ".srt").decode().split("\n")[2:4] == [first, second]


def test_cues_end_with_paragraphs_and_list_items():
    text = "Title two\n\n1. Buy milk\n2. Sell it\nto Ann\n\n(Bye)"
    words = [Word(m[0], m.start(), m.end(), "pauses", m.start()) for m in re.finditer(r"\S+", text)]
    lines = timestamps_file(words, ".srt", text).decode().split("\n")
    assert lines[2::4] == ["Title two", "1. Buy milk", "2. Sell it to Ann", "(Bye)"]


def test_batch_writes_them_next_to_each_file_and_again_if_they_are_missing(tmp_path, capsys):
    """The audio stays: its seed is recorded."""
    source, out = tmp_path / "lines.txt", tmp_path / "out"
    source.write_text("Hello there.\nGood night.\n")
    arguments = ["batch", str(source), "-o", str(out)]
    timed = [*arguments, "--timestamps", "srt"]
    assert cli.main(arguments) == 0
    audio = [(out / f"output_00{n}.wav").read_bytes() for n in (1, 2)]
    assert cli.main(timed) == 0
    assert "Good night." in (out / "output_002.srt").read_text()
    (out / "output_001.srt").unlink()
    assert cli.main(timed) == 0
    assert "1 spoken, 1 skipped" in capsys.readouterr().out
    assert cli.main([*arguments, "--timestamps", "json"]) == 0
    assert "2 spoken, 0 skipped" in capsys.readouterr().out
    assert cli.main(timed) == 0
    assert "0 spoken, 2 skipped" in capsys.readouterr().out
    assert [(out / f"output_00{n}.wav").read_bytes() for n in (1, 2)] == audio
    assert len(list(out.iterdir())) == 7
    # Times of other speech do not fit, and are removed.
    source.write_text("Hello there.\nGood evening.\n")
    assert cli.main(arguments) == 0
    assert {path.suffix for path in out.glob("output_002.*")} == {".wav"}
    assert {path.suffix for path in out.glob("output_001.*")} == {".wav", ".srt", ".json"}


@pytest.mark.parametrize("spoken", [False, True])
def test_batch_keeps_timestamps_of_somebody_else(tmp_path, capsys, spoken):
    source, out = tmp_path / "lines.txt", tmp_path / "out"
    source.write_text("Hello there.\nGood night.\n")
    arguments = ["batch", str(source), "-o", str(out)]
    out.mkdir()
    if spoken:
        assert cli.main(arguments) == 0
    (out / "output_001.srt").write_text("mine")
    assert cli.main([*arguments, "--timestamps", "srt"]) == 1
    assert "output_001.srt exists but is not in spoken.jsonl" in capsys.readouterr().err
    assert (out / "output_001.srt").read_text() == "mine"
    assert cli.main([*arguments, "--timestamps", "srt", "--overwrite"]) == 0
    assert "Hello" in (out / "output_001.srt").read_text()


@pytest.mark.parametrize("given", ["words.txt", "a.wav"])
def test_a_file_of_another_kind_is_refused_before_anything_is_spoken(tmp_path, given, refusal):
    line = refusal("generate", "-t", "Hi.", "-o", tmp_path / "a.wav", "--timestamps", tmp_path / given)
    assert "expected a name that ends in .json, .srt, .vtt" in line
    assert not list(tmp_path.iterdir())


def test_generate_writes_the_times_of_its_words_as_json_and_srt(tmp_path):
    def written(text, name, *options):
        given = ["generate", "-t", text, "-o", str(tmp_path / "a.wav"), "--seed", "1", "-q", *options]
        assert cli.main([*given, "--timestamps", str(tmp_path / name)]) == 0
        return (tmp_path / name).read_text()

    document = json.loads(written("It costs $5. Really?", "words.json"))
    assert document["method"] in ("pauses", "attention")
    assert [word["word"] for word in document["words"]] == ["It", "costs", "$5.", "Really?"]
    # Cues of Markdown end with its paragraphs.
    markdown = "See [the shop](https://example.com/shop)\n\nBuy milk\n\nSell it"
    subtitles = written(markdown, "words.srt", "--clean", "markdown")
    assert subtitles.split("\n")[2::4] == ["See the shop", "Buy milk", "Sell it"]
