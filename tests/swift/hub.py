"""A hub that serves one bundle, as the Swift package downloads it, and drops requests now and then."""

import json
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Barrier, BrokenBarrierError, Thread

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Private:
    """Serves one authorization only, and no weights before three files are asked for at the same time."""

    def __init__(self, only_for):
        self._only_for = only_for
        self._together, self._met = Barrier(3), False

    def refusal(self, path, authorization):
        if authorization != self._only_for:
            return 401, b"who is it?"
        if path.endswith("/weight.bin") and not self._met:
            try:
                self._together.wait(10)
                self._met = True
            except BrokenBarrierError:
                return None if self._met else (400, b"one file at a time")
        return None


@contextmanager
def served(bundle, *, altered="", only_for=""):
    """The address of a hub with the bundle as org/name. Each path's third answers fail; `altered` has a wrong byte.

    only_for: it serves requests with this authorization, as `Private` does.
    """
    requests = []
    private = Private(only_for)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            requests.append(self.path)
            refused = only_for and private.refusal(self.path, self.headers.get("Authorization"))
            if refused:
                self._answer(*refused)
            elif (list(dict.fromkeys(requests)).index(self.path) + requests.count(self.path)) % 3 == 0:
                self._answer(503, b"busy")
            elif self.path == "/api/models/org/name/revision/main":
                self._answer(200, json.dumps({"sha": COMMIT}).encode())
            elif self.path == "/requests":
                self._answer(200, json.dumps(requests).encode())
            else:
                self._file(self.path.removeprefix(f"/org/name/resolve/{COMMIT}/"))

        def _file(self, path):
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

        def _answer(self, status, content):
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
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
