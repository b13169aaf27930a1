"""Segments saved until the whole text is spoken: resuming an interrupted run, and its leftovers."""

import numpy as np
import pytest

from voxcpm_runtime.speech.saved_segments import SavedSegments

CHAPTER = "it is so. it is not. who is it? come in! why not. good day. so be it.\n\nthe end."
GIVEN = {"seed": 3, "min_len": 4}


@pytest.fixture
def book(tmp_path):
    """The path for a speech, in an empty folder."""
    (tmp_path / "books").mkdir()
    return tmp_path / "books" / "book.wav"


@pytest.fixture
def first_two(tts, book, stopping):  # noqa: ARG001 - in place
    """The chapter's segments, and a speech with its first two."""
    segments = tts.speak(CHAPTER, **GIVEN).segments
    saved = SavedSegments(book, "d", 3, drawn=False)
    for index in range(2):
        saved.put(index, segments[index])
    return segments, saved


@pytest.mark.usefixtures("stopping")
def test_interrupted_chapter_resumes(tts, models, book):
    whole = tts.speak(CHAPTER, **GIVEN)

    class Interrupted(Exception):
        pass

    def interrupted(progress):
        if progress.segment == 3:
            raise Interrupted

    def saved(digest="d", seed=3, drawn=False):
        return SavedSegments(book, digest, seed, drawn=drawn)

    kept = saved()
    with pytest.raises(Interrupted):
        tts.speak(CHAPTER, saved_segments=kept, progress=interrupted, **GIVEN)
    # The lock is released by then, though the first run's segments are still referred to.
    assert (saved().count, saved(drawn=True, seed=99).seed) == (3, 3)
    assert (saved(digest="other").count, saved(seed=4).count) == (0, 0)
    (book.parent / ".book.wav.segments" / "00001.segment").write_bytes(b"half")
    before = len(models["locdit_step"].calls)
    speech = tts.speak(CHAPTER, saved_segments=saved(), **GIVEN)
    np.testing.assert_array_equal(speech.audio, whole.audio)
    assert [s.seed for s in speech.segments] == [s.seed for s in whole.segments]
    patches = sum(len(s.latents) for i, s in enumerate(whole.segments) if i not in (0, 2))
    assert len(models["locdit_step"].calls) - before == 9 * patches
    saved().discard()
    assert not list(book.parent.iterdir())


def test_reordered_segments_are_not_reused(first_two, book):
    """Two swapped files, and one of a speech with another seed."""
    segments, saved = first_two
    first, second = (saved.folder / f"0000{index}.segment" for index in range(2))
    before = first.read_bytes()
    assert saved.get(0).text == segments[0].text
    first.write_bytes(second.read_bytes())
    second.write_bytes(before)
    assert (saved.get(0), saved.get(1)) == (None, None)
    saved.discard()
    other = SavedSegments(book, "d", 4, drawn=False)
    other.put(1, segments[1])
    first.write_bytes(before)
    assert other.get(0) is None
    assert other.get(1) is not None
    other.discard()


@pytest.mark.usefixtures("stopping")
def test_resegmented_text_is_regenerated(tts, book):
    """An earlier release may have split the text differently."""

    def speak(tokens, saved):
        return tts.speak(CHAPTER, seed=3, segment_tokens=tokens, saved_segments=saved)

    speak(8, SavedSegments(book, "d", 3, drawn=False))
    speech = speak(12, SavedSegments(book, "d", 3, drawn=False))
    np.testing.assert_array_equal(speech.audio, speak(12, None).audio)


def test_kill_during_removal_leaves_no_segments_to_resume(first_two, book, monkeypatch):
    """Their speech is finished; a run that found some of them would regenerate the others."""
    _, saved = first_two

    def killed(folder, **_):
        for path in sorted(folder.glob("*.segment"))[:1]:
            path.unlink()
            raise SystemError("killed")

    with monkeypatch.context() as patched:
        patched.setattr("voxcpm_runtime.speech.saved_segments.shutil.rmtree", killed)
        with pytest.raises(SystemError, match="killed"):
            saved.discard()
    saved.release()
    after = SavedSegments(book, "d", 3, drawn=False)
    assert (after.count, after.get(1)) == (0, None)
    after.discard()
    assert not list(book.parent.iterdir())
