"""A real S3-compatible server in a process of its own on loopback, and a wire to it that can be cut."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection
from typing import Any


class S3Server:
    """Credentials mean nothing to it. It forgets everything when it ends."""

    def __init__(self, port: int = 0) -> None:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            self.port = self._announced()
        except BaseException:
            self.kill()
            raise

    def _announced(self) -> int:
        """The port it says it listens on."""
        assert self.process.stderr is not None
        seen = []
        for line in self.process.stderr:
            seen.append(line)
            if found := re.search(r"http://127\.0\.0\.1:(\d+)", line):
                # A full pipe would stop it.
                threading.Thread(target=self.process.stderr.read, daemon=True).start()
                return int(found[1])
        raise AssertionError(f"the server did not start: {seen}")

    def bucket(self) -> str:
        """A new one."""
        name = f"kv-{uuid.uuid4().hex}"
        assert self.request("PUT", name)[0] == 200
        return name

    def request(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request(method, f"/{path}", body)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def stop(self) -> None:
        """It keeps its connections and answers nothing."""
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def running_server() -> Iterator[S3Server]:
    server = S3Server()
    try:
        yield server
    finally:
        server.kill()


def store_config(bucket: str, port: int, **more: Any) -> dict[str, Any]:
    return {
        "bucket": bucket, "endpoint_override": f"127.0.0.1:{port}", "scheme": "http", "access_key": "test-access",
        "secret_key": "test-secret", **more,
    }  # fmt: skip


class Wire:
    """Forwards connections to `port`. With `cut_after`, a connection is cut once that many bytes went one way. After
    `refuse`, every request is answered with that error and reaches nobody; `go_on` ends it."""

    def __init__(self, port: int) -> None:
        self._to = port
        self.cut_after: int | None = None
        self.cuts = self.refused = 0
        self._answer: tuple[int, str, str] | None = None
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def refuse(self, status: int, code: str, message: str) -> None:
        """As S3 words its errors. Connections that are open are cut."""
        self._answer = (status, code, message)
        for each in list(self._open):
            _end(each)

    def go_on(self) -> None:
        self._answer = None

    def close(self) -> None:
        # `close` alone does not wake the thread that accepts.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                here, _ = self._listener.accept()
                if self._answer is not None:
                    threading.Thread(target=self._reply, args=(here, *self._answer), daemon=True).start()
                    continue
                there = socket.create_connection(("127.0.0.1", self._to))
                self._open |= {here, there}
                for source, target in ((here, there), (there, here)):
                    threading.Thread(target=self._forward, args=(source, target), daemon=True).start()

    def _reply(self, here: socket.socket, status: int, code: str, message: str) -> None:
        with suppress(OSError), here:
            head = b""
            while b"\r\n\r\n" not in head and (data := here.recv(65536)):
                head += data
            self.refused += 1
            body = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
            here.sendall(
                f"HTTP/1.1 {status} {code}\r\nContent-Type: application/xml\r\nConnection: close\r\n"
                f"Content-Length: {len(body)}\r\n\r\n".encode()
                + (b"" if head.startswith(b"HEAD") else body)
            )
            here.shutdown(socket.SHUT_WR)
            # Closing with bytes unread would reset the connection under the answer.
            while here.recv(65536):
                pass

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        passed = 0
        with suppress(OSError):
            while data := source.recv(4096):
                passed += len(data)
                if self.cut_after is not None and passed > self.cut_after:
                    self.cuts += 1
                    break
                target.sendall(data)
        for end in (source, target):
            _end(end)
            self._open.discard(end)


def _end(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
