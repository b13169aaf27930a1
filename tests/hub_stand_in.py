"""An in-memory fake of the Hugging Face Hub on loopback: the endpoints for publishing and opening."""

import base64
import functools
import hashlib
import json
import re
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

Tree = dict[str, bytes]
WRITER, READER = "hf_writer", "hf_reader"
LARGE = 1000
"""The size in bytes from which a file is an LFS object."""


class Hub(ThreadingHTTPServer):
    """The hub's endpoints that publishing and opening use; repositories by name and branch."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Endpoints)
        self.repositories: dict[str, dict[str, Tree]] = {}
        self.objects: dict[str, bytes] = {}
        self.private: set[str] = set()
        self.defaults_to_private = False  # An organisation's setting
        self.messages: list[str] = []
        self.ignored = ""

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub for child processes, with an empty download cache and a write token."""
    server = Hub()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", server.address)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_TOKEN", WRITER)
    monkeypatch.delenv("HF_HUB_DISABLE_XET", raising=False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@functools.lru_cache(maxsize=4096)  # every request asks for the digests of all files
def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def commit_of(tree: Tree) -> str:
    files = "".join(f"{path}\0{sha256(data)}\0" for path, data in sorted(tree.items()))
    return hashlib.sha1(files.encode(), usedforsecurity=False).hexdigest()


class Endpoints(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, *_: Any) -> None:
        pass

    def reply(self, status: int, body: Any = None, **headers: str) -> None:
        data = body if isinstance(body, bytes) else json.dumps({} if body is None else body).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def handle_request(self) -> None:
        path = unquote(urlsplit(self.path).path)
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if self.command in ("POST", "PUT") and not path.startswith("/objects/"):
            if token not in (WRITER, READER):
                return self.reply(401, {"error": "Invalid username or password."})
            if token == READER:
                return self.reply(403, {"error": "Forbidden: you need write access."})
        for pattern, answer in ROUTES.items():
            if (found := re.fullmatch(pattern, f"{self.command} {path}")) is not None:
                return answer(self, content, **found.groupdict())
        return self.reply(404, {"error": f"no endpoint {self.command} {path}"})

    do_GET = do_HEAD = do_POST = do_PUT = handle_request  # noqa: N815 - the names that http.server calls

    def create(self, content: bytes) -> None:
        asked = json.loads(content)
        repository = f"{asked['organization']}/{asked['name']}"
        known = repository in self.server.repositories
        self.server.repositories.setdefault(repository, {"main": {".gitattributes": b"*.bin filter=lfs\n"}})
        chosen = {True: "private", False: "public"}.get(asked.get("private"), asked.get("visibility"))
        if chosen == "private" or (chosen is None and self.server.defaults_to_private):
            self.server.private.add(repository)
        self.reply(409 if known else 200, {"url": f"{self.server.address}/{repository}"})

    def validate(self, content: bytes) -> None:
        front = json.loads(content)["content"].startswith("---\n")
        self.reply(200, {"warnings": [], "errors": [] if front else [{"message": "no front matter"}]})

    def tree_at(self, repository: str, revision: str) -> Tree | None:
        branches = self.server.repositories.get(repository, {})
        by_commit = {commit_of(tree): tree for tree in branches.values()}
        found = branches.get(revision, by_commit.get(revision))
        if found is None:
            code = "RevisionNotFound" if branches else "RepoNotFound"
            self.reply(404, {"error": "Not Found"}, X_Error_Code=code)
        return found

    def info(self, _: bytes, repository: str, revision: str | None = None) -> None:
        if (tree := self.tree_at(repository, revision or "main")) is not None:
            names = [{"rfilename": name} for name in tree]
            self.reply(200, {"id": repository, "sha": commit_of(tree), "siblings": names})

    def branch(self, _: bytes, repository: str, branch: str) -> None:
        branches = self.server.repositories[repository]
        known = branch in branches
        branches.setdefault(branch, dict(branches["main"]))
        self.reply(409 if known else 200, {})

    def tree(self, _: bytes, repository: str, revision: str) -> None:
        if (tree := self.tree_at(repository, revision)) is not None:
            self.reply(200, [entry(name, data) for name, data in sorted(tree.items())])

    def preupload(self, content: bytes, repository: str, revision: str) -> None:
        if self.tree_at(repository, revision) is not None:
            files = [
                {
                    "path": file["path"],
                    "uploadMode": "lfs" if file["size"] >= LARGE else "regular",
                    "shouldIgnore": bool(self.server.ignored) and file["path"].endswith(self.server.ignored),
                }
                for file in json.loads(content)["files"]
            ]
            self.reply(200, {"files": files})

    def batch(self, content: bytes, repository: str) -> None:  # noqa: ARG002 - one store for all
        objects = []
        for asked in json.loads(content)["objects"]:
            there = asked["oid"] in self.server.objects
            send = {"upload": {"href": f"{self.server.address}/objects/{asked['oid']}"}}
            objects.append({**asked, **({} if there else {"actions": send})})
        self.reply(200, {"transfer": "basic", "objects": objects})

    def put(self, content: bytes, oid: str) -> None:
        assert sha256(content) == oid
        self.server.objects[oid] = content
        self.reply(200)

    def commit(self, content: bytes, repository: str, revision: str) -> None:
        tree = dict(self.server.repositories[repository][revision])
        for line in content.splitlines():
            operation = json.loads(line)
            value = operation["value"]
            if operation["key"] == "header":
                self.server.messages.append(value["summary"])
            elif operation["key"] == "file":
                tree[value["path"]] = base64.b64decode(value["content"])
            elif operation["key"] == "lfsFile":
                tree[value["path"]] = self.server.objects[value["oid"]]
            elif operation["key"] == "deletedFile":
                del tree[value["path"]]
        self.server.repositories[repository][revision] = tree
        oid = commit_of(tree)
        url = f"{self.server.address}/{repository}/commit/{oid}"
        self.reply(200, {"commitUrl": url, "commitOid": oid})

    def resolve(self, _: bytes, repository: str, revision: str, path: str) -> None:
        if (tree := self.tree_at(repository, revision)) is None:
            return None
        if path not in tree:
            return self.reply(404, {}, X_Error_Code="EntryNotFound")
        headers = {"ETag": f'"{entry(path, tree[path])["oid"]}"', "X_Repo_Commit": commit_of(tree)}
        return self.reply(200, tree[path], **headers)


def entry(name: str, data: bytes) -> dict[str, Any]:
    digest = sha256(data)
    lfs = {"lfs": {"oid": digest, "size": len(data), "pointerSize": 130}} if len(data) >= LARGE else {}
    return {"type": "file", "path": name, "size": len(data), "oid": digest[:40] if not lfs else digest, **lfs}


_REPOSITORY = r"(?P<repository>[^/]+/[^/]+)"
ROUTES: dict[str, Callable[..., None]] = {
    r"POST /api/repos/create": Endpoints.create,
    r"POST /api/validate-yaml": Endpoints.validate,
    rf"GET /api/models/{_REPOSITORY}": Endpoints.info,
    rf"GET /api/models/{_REPOSITORY}/revision/(?P<revision>[^/]+)": Endpoints.info,
    rf"GET /api/models/{_REPOSITORY}/tree/(?P<revision>[^/]+)": Endpoints.tree,
    rf"POST /api/models/{_REPOSITORY}/branch/(?P<branch>.+)": Endpoints.branch,
    rf"POST /api/models/{_REPOSITORY}/preupload/(?P<revision>.+)": Endpoints.preupload,
    rf"POST /api/models/{_REPOSITORY}/commit/(?P<revision>.+)": Endpoints.commit,
    rf"POST /{_REPOSITORY}\.git/info/lfs/objects/batch": Endpoints.batch,
    r"PUT /objects/(?P<oid>[0-9a-f]{64})": Endpoints.put,
    rf"(?:GET|HEAD) /{_REPOSITORY}/resolve/(?P<revision>[^/]+)/(?P<path>.+)": Endpoints.resolve,
}
