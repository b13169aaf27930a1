"""The server's documentation is correct."""

from documents import BY_NAME, run_python


def test_documented_python_runs(server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "anything")
    names = run_python(BY_NAME["server.md"])
    run_python(BY_NAME["server-api.md"], client=names["client"])
    names["client"].close()
    assert (tmp_path / "hello.wav").stat().st_size > 1000
