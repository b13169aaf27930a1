import json
import shutil

import numpy as np
import pytest

from voxcpm_constants.errors import BundleError
from voxcpm_conversion.default_bundle import DEFAULT_CHECKPOINT
from voxcpm_runtime.text.tokenizer import TextTokenizer

TEXTS = [
    "Hello.",
    "Hello, world! It's 3:45 p.m. – isn't it?",
    " two  spaces   three",
    "trailing ",
    "   ",
    "你好,世界。我们今天去北京大学图书馆看书。",
    "人工智能技术的发展",
    "mixed 中文 and English混在一起 text。",
    "数字123和ABC",
    "emoji 😀👍🏽👨‍👩‍👧 and 🇫🇷",
    "ünïcödé ñ ß Ω й ğ 한국어 日本語 العربية עברית",
    "punct !!! ??? ... ,,, ;;; “quotes” ‘single’ —dash— …",
    "line\nbreak\r\nand\ttab",
    "control\x00\x01\x1b\x7fcharacters\u200b\ufeff",
    "<s>literal</s> <unk> <|im_end|> <|audio_start|>x<|audio_end|> y",
    "▁lower one eighth▁block ▁你好▁",
    "a" * 300,
    "\u0301combining e\u0301",
    "",
]


UNKNOWN = {"unk_token": "<unk>"}


def upstream_tokenizer(base):
    pytest.importorskip("torch")
    upstream = pytest.importorskip("voxcpm_validation.upstream")
    upstream.import_upstream()
    from voxcpm.model.utils import mask_multichar_chinese_tokens

    return mask_multichar_chinese_tokens(base)


@pytest.fixture(scope="module")
def llama():
    transformers = pytest.importorskip("transformers")
    if int(transformers.__version__.partition(".")[0]) < 5:
        pytest.skip("transformers 4 runs tokenizer.json as it stands")
    return lambda folder: upstream_tokenizer(transformers.LlamaTokenizerFast.from_pretrained(folder))


@pytest.fixture(scope="module")
def as_it_stands():
    transformers = pytest.importorskip("transformers")
    return lambda folder: upstream_tokenizer(
        transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), **UNKNOWN)
    )


@pytest.fixture(scope="module")
def published(shared_data):
    return shared_data / "tokenizer"


def test_published_vocabulary_equals_upstream_on_every_text(published, llama):
    ours, theirs = TextTokenizer.from_folder(published), llama(published)
    rng = np.random.default_rng(0)
    alphabet = list("ab Zé,。 你好世界中国人民\n\t▁😀0<s>1\u3000’")
    for text in (*TEXTS, *("".join(rng.choice(alphabet, 16)) for _ in range(1000))):
        assert ours(text) == theirs(text), text


@pytest.mark.parametrize(
    "changes",
    [
        {"add_prefix_space": False},
        {"split_special_tokens": True},
        {"added_tokens_decoder": {"1": {"content": "<s>", "special": True}}},
    ],
)
def test_tokenizer_config_is_honoured(published, llama, tmp_path, changes):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(published / name, tmp_path / name)
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    ours, theirs = TextTokenizer.from_folder(tmp_path), llama(tmp_path)
    for text in ["Hello <s>world</s> <|im_end|> x", " two", "你好"]:
        assert ours(text) == theirs(text), text


def test_tokenizer_with_its_own_normalizer_is_unchanged(as_it_stands, llama):
    folder = DEFAULT_CHECKPOINT
    ours = TextTokenizer.from_folder(folder)
    theirs, fifth = as_it_stands(folder), llama(folder)
    for text in TEXTS:
        assert ours(text) == theirs(text), text
    assert ours("Hello There.") == ours("hello there.")
    # transformers 5 gives the same tokens where it loses no letters.
    assert ours("they went in opposite directions.") == fifth("they went in opposite directions.")


def test_characters_without_a_token_are_reported(letters, published):
    for text, unknown in (("Hello 你 there ☃☃.", "你☃"), ("好 there", "好"), (" there", "")):
        assert letters.unknown_characters(text) == unknown
    # By its bytes, any character has tokens.
    assert TextTokenizer.from_folder(published).unknown_characters("Hello 你 ☃ \x01.") == ""


REFUSED = [
    # Its time could double with each additional a.
    ({"normalizer": {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": ""}}, "in its normalizer"),
    ({"normalizer": {"type": "Sequence", "normalizers": [{"type": "Lowercase"}] * 17}}, "at most 16 steps"),
    # The library would panic, and print 160 lines.
    ({"pre_tokenizer": {"type": "FixedLength", "length": 0}}, "in its pre_tokenizer: expected Metaspace"),
    (
        {"added_tokens": [{"id": 9, "content": "l", "normalized": True, "special": False, "single_word": False,
                           "lstrip": True, "rstrip": False}]},
        "added_tokens: lstrip: Input should be False",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("part", "message"), REFUSED)
def test_file_that_could_hang_or_panic_is_a_one_line_error(tmp_path, capfd, part, message):
    shutil.copyfile(DEFAULT_CHECKPOINT / "tokenizer_config.json", tmp_path / "tokenizer_config.json")
    document = json.loads((DEFAULT_CHECKPOINT / "tokenizer.json").read_text(encoding="utf-8"))
    (tmp_path / "tokenizer.json").write_text(json.dumps({**document, **part}), encoding="utf-8")
    with pytest.raises(BundleError, match=message):
        TextTokenizer.from_folder(tmp_path)("hello l z")
    assert capfd.readouterr().err == ""
