import numpy as np

from voxcpm_runtime.model.sequence import build_sequence

PROMPT = np.arange(3 * 2 * 4, dtype=np.float32).reshape(3, 2, 4) + 1
REFERENCE = -np.arange(2 * 2 * 4, dtype=np.float32).reshape(2, 2, 4) - 1


def test_zero_shot_is_text_and_audio_start():
    sequence = build_sequence([7, 8], (2, 4))

    assert sequence.tokens.tolist() == [7, 8, 101]
    assert not sequence.is_audio.any()
    assert sequence.patches.shape == (0, 2, 4)
    np.testing.assert_array_equal(sequence.last_patch, np.zeros((2, 4)))
    assert len(sequence.decoder_context(2)) == 0


def test_a_prompt_follows_the_text():
    sequence = build_sequence([7, 8], (2, 4), prompt=PROMPT)

    assert sequence.tokens.tolist() == [7, 8, 101, 0, 0, 0]
    assert sequence.is_audio.tolist() == [False] * 3 + [True] * 3
    np.testing.assert_array_equal(sequence.last_patch, PROMPT[2])
    np.testing.assert_array_equal(sequence.decoder_context(2), PROMPT[1:])
    np.testing.assert_array_equal(sequence.decoder_context(9), PROMPT)


def test_a_reference_stands_first_between_its_markers_and_is_not_continued():
    sequence = build_sequence([7], (2, 4), reference=REFERENCE)

    assert sequence.tokens.tolist() == [103, 0, 0, 104, 7, 101]
    assert sequence.is_audio.tolist() == [False, True, True, False, False, False]
    assert len(sequence.decoder_context(3)) == 0
    np.testing.assert_array_equal(sequence.last_patch, np.zeros((2, 4)))


def test_reference_and_prompt():
    sequence = build_sequence([7], (2, 4), reference=REFERENCE, prompt=PROMPT[:1])

    assert sequence.tokens.tolist() == [103, 0, 0, 104, 7, 101, 0]
    np.testing.assert_array_equal(sequence.patches, np.concatenate([REFERENCE, PROMPT[:1]]))
    # Upstream's voxcpm2 takes the last audio positions, whichever they are.
    np.testing.assert_array_equal(sequence.decoder_context(3), np.concatenate([REFERENCE, PROMPT[:1]]))
