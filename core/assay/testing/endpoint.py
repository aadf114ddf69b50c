"""A chat-completions service on loopback that answers by a script: for tests of whatever asks a model over HTTP."""

import json
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Script = Callable[[Mapping[str, Any]], "str | int"]
"""From a request's JSON body to the text of the answer, or to a status code of failure."""


@dataclass
class ScriptedEndpoint:
    """Where the service is, and what it was asked."""

    base_url: str
    requests: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """The bodies, in the order in which they came."""
    headers: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    """The headers of each, names in small letters."""


@contextmanager
def scripted_endpoint(script: Script) -> Generator[ScriptedEndpoint, None, None]:
    """An OpenAI-compatible `/v1/chat/completions` on a free port of 127.0.0.1, until the block ends."""
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                endpoint.requests.append(body)
                endpoint.headers.append({name.lower(): value for name, value in self.headers.items()})
            said = script(body) if self.path == "/v1/chat/completions" else 404
            status, answer = (200, _completion(said)) if isinstance(said, str) else (said, {"error": "scripted"})
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    endpoint = ScriptedEndpoint(f"http://127.0.0.1:{server.server_port}/v1")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield endpoint
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _completion(text: str) -> dict[str, Any]:
    return {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120},
    }
