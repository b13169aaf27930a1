"""A hub that serves one bundle, as the Swift package downloads it, and drops requests now and then."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@contextmanager
def served(bundle: Path, *, altered: str = "") -> Iterator[str]:
    """The address of a hub with the bundle as org/name. Each third answer fails; `altered` has a wrong byte."""
    requests: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            requests.append(self.path)
            if len(requests) % 3 == 0:
                self._answer(503, b"busy")
            elif self.path == "/api/models/org/name/revision/main":
                self._answer(200, json.dumps({"sha": COMMIT}).encode())
            elif self.path == "/requests":
                self._answer(200, json.dumps(requests).encode())
            else:
                self._file(self.path.removeprefix(f"/org/name/resolve/{COMMIT}/"))

        def _file(self, path: str) -> None:
            file = bundle / path
            if not file.is_file():
                self._answer(404, b"no such file")
                return
            content = bytearray(file.read_bytes())
            if path == altered:
                content[len(content) // 2] ^= 1
            given = self.headers.get("Range")
            if given is None:
                self._answer(200, bytes(content))
                return
            first, last = map(int, given.removeprefix("bytes=").split("-"))
            self._answer(206, bytes(content[first : last + 1]))

        def _answer(self, status: int, content: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
