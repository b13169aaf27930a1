import pytest


@pytest.fixture
def asked(monkeypatch):
    """The arguments of each conversion that the command begins, which is interrupted there (exit code 130)."""
    calls = []

    def convert(*_, **given):
        calls.append(given)
        raise KeyboardInterrupt

    monkeypatch.setattr("voxcpm_conversion.convert.convert", convert)
    return calls
