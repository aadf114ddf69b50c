"""What the tests of engines on servers share: one vLLM server for a whole file, scripted ones, a tokenizer."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import json
import threading
import time
import urllib.request
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from assay.discovery import default_cache_dir
from assay.errors import ConfigError
from assay.training.model import PolicyModel
from assay_engines.vllm.options import VLLMOptions
from assay_engines.vllm.server import Server, find_python, free_port, server_command

START_S = 900.0
OPTIONS = VLLMOptions(max_rows=16)
Body = Mapping[str, Any]
Reply = Body | Sequence[Body | None] | None
"""One answer of a scripted server: JSON, with status 500 where it has the key `error`; or a stream of events. None cuts
the connection."""
Answer = Callable[[str, Body | None], Reply]
"""From a route and what was posted to it, None where nothing was."""


class Letters:
    """A tokenizer of single letters: id 0 is `a`; 25 ends and is no text."""

    chat_template = None

    def __call__(self, text: str, add_special_tokens: bool) -> dict[str, list[int]]:
        return {"input_ids": [ord(letter) - ord("a") for letter in text]}

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        return "".join(chr(ord("a") + one) for one in ids if one != 25)


@pytest.fixture
def letters() -> Letters:
    """A tokenizer whose ids can be read in a test."""
    return Letters()


@pytest.fixture(scope="session")
def scripted() -> Callable[[Answer], AbstractContextManager[str]]:
    """A server on loopback that answers as it is told, for the time of a block; its url."""
    return _scripted


@contextmanager
def _scripted(answer: Answer) -> Generator[str]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._give(answer(self.path, None))

        def do_POST(self) -> None:
            self._give(
                answer(self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"] or 0)) or b"{}"))
            )

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def _give(self, reply: Reply) -> None:
            if reply is None:
                self.close_connection = True
            elif isinstance(reply, Mapping):
                data = json.dumps(reply).encode()
                self.send_response(500 if "error" in reply else 200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
            else:
                self._stream(reply)

        def _stream(self, events: Sequence[Body | None]) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for each in events:
                if each is None:
                    self.close_connection = True
                    return
                line = f"data: {json.dumps(each)}\n\n".encode()
                self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
            self.wfile.write(b"0\r\n\r\n")

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(scope="module")
def vllm_python() -> Path:
    """The interpreter of vLLM's environment; skips where there is none."""
    try:
        return find_python(OPTIONS, default_cache_dir(), Path.cwd())
    except ConfigError as absent:
        pytest.skip(str(absent))


@pytest.fixture(scope="module")
def server(vllm_python: Path, policy: PolicyModel, tmp_path_factory: pytest.TempPathFactory) -> Generator[Server]:
    """A vLLM server on the policy."""
    port = free_port()
    command = server_command(vllm_python, Path(policy.path), OPTIONS, dtype="float32", port=port, on_cpu=True)
    log = tmp_path_factory.mktemp("vllm") / "vllm.log"
    running = Server(command, port=port, log=log, kv_cache_gib=1)
    try:
        deadline = time.monotonic() + START_S
        while not _healthy(running.url):
            assert running.running, f"the server ended while it started: {running.last_words()}"
            assert time.monotonic() < deadline, f"no answer after {START_S:g} s: {running.last_words()}"
            time.sleep(0.25)
        yield running
    finally:
        running.stop()


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=2) as reply:
            return reply.status == 200
    except OSError:
        return False
