"""The page's files and first requests, without a browser: headers, keys, and no other files."""

import re
from pathlib import Path

import httpx2

import voxcpm_server

FOLDER = Path(voxcpm_server.__file__).parent / "page" / "assets"
FILES = sorted(path.name for path in FOLDER.iterdir())


def test_only_assets_are_served_with_a_policy_and_an_etag(server):
    answer = httpx2.get(server.url)
    assert answer.status_code == httpx2.head(server.url).status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == policy["frame-ancestors"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == "'self'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert answer.headers["x-content-type-options"] == "nosniff"
    first = server.get("/page/main.js")
    again = server.get("/page/main.js", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    for path in ("", "index.html", "../settings.py", "%2e%2e/settings.py", "..%2fsettings.py", "main"):
        assert server.get(f"/page/{path}").status_code == 404, path


def test_all_assets_are_served_without_a_key(serve):
    url = serve(keys=("secret",)).url
    for file in FILES:
        # Following a link from another site.
        linked = {"Sec-Fetch-Site": "cross-site"}
        answer = httpx2.get(f"{url}/" if file == "index.html" else f"{url}/page/{file}", headers=linked)
        assert answer.content == (FOLDER / file).read_bytes(), file
        assert answer.headers["x-content-type-options"] == "nosniff"
        text = answer.content.decode()
        named = re.findall(
            r'(?:href|src)="(?:page/)([^"]+)"|from "\./([^"]+)"|address\("page/([^"]+)"\)', text
        )
        assert {name for names in named for name in names if name} <= set(FILES)
        # No CDN, foreign fonts or images.
        assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)", text), file
    assert httpx2.get(f"{url}/v1/about").json()["needs_key"] is True
    assert httpx2.get(f"{url}/v1/audio/voices").status_code == 401
