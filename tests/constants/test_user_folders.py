import pytest

from voxcpm_constants.user_folders import cache_folder, voices_folder


@pytest.fixture(autouse=True)
def _unset(monkeypatch):
    for variable in ("VOXCPM_COREML_CACHE", "VOXCPM_COREML_VOICES"):
        monkeypatch.delenv(variable, raising=False)


def test_one_variable_holds_everything(tmp_path, monkeypatch):
    monkeypatch.setenv("VOXCPM_COREML_CACHE", str(tmp_path / "all"))
    assert cache_folder("compiled") == tmp_path / "all" / "compiled"
    assert voices_folder() == tmp_path / "all" / "voices"
    monkeypatch.setenv("VOXCPM_COREML_VOICES", str(tmp_path / "mine"))
    assert voices_folder() == tmp_path / "mine"


@pytest.mark.parametrize("variable", ["VOXCPM_COREML_CACHE", "VOXCPM_COREML_VOICES"])
def test_a_file_is_one_line_and_exit_code_two(variable, tmp_path, monkeypatch, refusal):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(variable, str(tmp_path / "file"))
    line = refusal("voices", "list")
    assert f"{variable}={tmp_path / 'file'}: " in line
    assert "name another or unset it" in line
    # Python raises RuntimeError for the home of nobody.
    refusal("generate", "--text-file", "~nobody-of-this-name/a.txt")
