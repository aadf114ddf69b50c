"""How fast `assay serve` answers alone and beside half-open connections, and how long it drains.

    python tests/benchmarks/serve.py [--requests 300] [--half-open 200] [--batch 32]

One JSON line: seconds until it listens, p50 and p99 of single items of `exact` without and with half-open connections
(half of them inside the headers, half inside the body), items a second in batches, and seconds from SIGTERM to the end
while one item takes two seconds.
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import httpx

SLOW = """
import time
from assay import Verdict

def slow(task, rollout):
    time.sleep(2)
    return Verdict.score(1.0)
"""


def items(count: int, text: str = "4") -> list[dict[str, Any]]:
    """`count` different answers."""
    return [
        {"id": str(index), "task": {"prompt": f"{index}?", "reference": "4"}, "rollout": {"text": text}}
        for index in range(count)
    ]


def latencies_ms(client: httpx.Client, url: str, requests: int) -> tuple[float, float]:
    """Median and 99th percentile of requests with one item."""
    found: list[float] = []
    for index in range(requests):
        started = time.perf_counter()
        asked = {"items": items(1, f"{index}"), "rewards": ["exact"]}
        client.post(f"{url}/v1/score", json=asked).raise_for_status()
        found.append(1000 * (time.perf_counter() - started))
    found.sort()
    return found[len(found) // 2], found[int(0.99 * (len(found) - 1))]


def half_open(port: int, count: int) -> list[socket.socket]:
    """Connections whose request does not go on."""
    opened: list[socket.socket] = []
    for index in range(count):
        connection = socket.create_connection(("127.0.0.1", port))
        head = b"POST /v1/score HTTP/1.1\r\nHost: localhost\r\n"
        body = b"Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"
        connection.sendall(head if index % 2 else head + body)
        opened.append(connection)
    return opened


def main() -> None:
    """Measure once and print one line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--half-open", type=int, default=200)
    parser.add_argument("--batch", type=int, default=32)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "slow.py").write_text(SLOW, encoding="utf-8")
        started = time.perf_counter()
        command = [sys.executable, "-m", "assay", "serve", "-r", "exact", "-r", "slow.py:slow", "--port", "0", "--json"]
        with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as running:
            assert running.stdout is not None
            launch = json.loads(running.stdout.readline())
            listens_s = time.perf_counter() - started
            url, port = launch["url"], launch["port"]
            with httpx.Client(timeout=60) as client:
                latencies_ms(client, url, 20)
                alone = latencies_ms(client, url, options.requests)
                connections = half_open(port, options.half_open)
                beside = latencies_ms(client, url, options.requests)
                for connection in connections:
                    connection.close()
                started = time.perf_counter()
                for turn in range(20):
                    asked = {"items": items(options.batch, f"batch {turn}"), "rewards": ["exact"]}
                    client.post(f"{url}/v1/score", json=asked).raise_for_status()
                per_s = 20 * options.batch / (time.perf_counter() - started)
                asking = threading.Thread(target=lambda: client.post(f"{url}/v1/score", json={"items": items(1)}))
                asking.start()
                while httpx.get(f"{url}/healthz").json()["held"] == 0:
                    time.sleep(0.01)
                started = time.perf_counter()
                running.send_signal(signal.SIGTERM)
                running.wait(timeout=60)
                drained_s = time.perf_counter() - started
                asking.join()
    print(
        json.dumps(
            {
                "benchmark": "serve",
                "listens_s": round(listens_s, 2),
                "alone_p50_ms": round(alone[0], 2),
                "alone_p99_ms": round(alone[1], 2),
                "half_open": options.half_open,
                "beside_p50_ms": round(beside[0], 2),
                "beside_p99_ms": round(beside[1], 2),
                "items_per_s": round(per_s),
                "drained_s": round(drained_s, 2),
                "load": os.getloadavg()[0],
            }
        )
    )


if __name__ == "__main__":
    main()
