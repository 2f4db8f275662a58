"""What two tests' Hubs share: files over HTTP on 127.0.0.1, by ranges. Which files there are, they say themselves."""

from __future__ import annotations

import re
from http.server import BaseHTTPRequestHandler


class FileHandler(BaseHTTPRequestHandler):
    """`answer` is called for HEAD and GET and ends with `send` or `send_file`."""

    protocol_version = "HTTP/1.1"

    def answer(self) -> None:
        raise NotImplementedError

    def on_sent(self, num_bytes: int) -> None:
        """Before the body of a GET goes out."""

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def log_message(self, *_args: object) -> None:
        pass

    def send_file(self, data: bytes, headers: dict[str, str], *, gives_ranges: bool = True) -> None:
        """The file, or the range of it that was asked for."""
        headers = {**headers, "Accept-Ranges": "bytes"}
        span = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "")
        if span is None or not gives_ranges:
            return self.send(200, data, headers)
        first, last = int(span[1]), min(int(span[2]), len(data) - 1)
        headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
        return self.send(206, data[first : last + 1], headers)

    def send(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.on_sent(len(data))
            try:
                self.wfile.write(data)
            except OSError:  # the client has seen enough
                self.close_connection = True
