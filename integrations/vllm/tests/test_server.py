"""The server and the request of docs/serve.md: an engine in a process of its own, compiled."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from conftest import FOLDER, SPECULATIVE

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "serve.md").read_text()
MOST_SECONDS = 300


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def read(url: str, body: str | None = None) -> str:
    data = None if body is None else body.encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return str(answer.read().decode())


def wait_for(url: str, server: subprocess.Popen[str], log: Path) -> None:
    end = time.monotonic() + MOST_SECONDS
    while time.monotonic() < end:
        assert server.poll() is None, log.read_text()[-4000:]
        try:
            read(url)
        except OSError:
            time.sleep(0.5)
        else:
            return
    raise AssertionError(f"no server after {MOST_SECONDS} s:\n{log.read_text()[-4000:]}")


def test_the_page_s_server_and_request(expected: dict[str, Any]) -> None:
    port, log = free_port(), FOLDER / "server.log"
    options = {"directory": str(FOLDER / "drafter"), "log_seconds": 0.001, "check": True}
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server",
        "--model", str(FOLDER / "target"), "--served-model-name", "target",
        "--speculative-config", json.dumps({**SPECULATIVE, "num_speculative_tokens": 8}),
        "--additional-config", json.dumps({"lattice_bpd": options}),
        "--host", "127.0.0.1", "--port", str(port),
        "--dtype", "float32", "--max-model-len", "256", "--max-num-seqs", "16",
    ]  # fmt: skip
    environment = {
        **os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_LOGGING_LEVEL": "INFO",
        "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "VLLM_PLUGINS": "",
    }  # fmt: skip
    with log.open("w") as file:
        server = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, text=True, env=environment,
            start_new_session=True,
        )  # fmt: skip
    try:
        address = f"http://127.0.0.1:{port}"
        wait_for(f"{address}/health", server, log)
        (body,) = re.findall(r"-d '(\{.*\})'", PAGE)
        answer = json.loads(read(f"{address}/v1/completions", body))
        (begins,) = re.findall(r"The answer begins with `(.+?)`", PAGE)
        assert answer["choices"][0]["text"].startswith(begins)
        metrics = read(f"{address}/metrics")
        (FOLDER / "metrics.txt").write_text(metrics)
        values = []
        for name in re.findall(r"^    (vllm:spec_decode_num_\w+\{.*\}) \d+", PAGE, re.MULTILINE):
            (line,) = [one for one in metrics.splitlines() if one.startswith(f"{name} ")]
            values.append(float(line.rpartition(" ")[2]))
        drafts, draft_tokens, accepted = values
        assert 0 < drafts < accepted <= draft_tokens
        every = {
            "model": "target", "prompt": expected["prompts"], "max_tokens": 64, "temperature": 0,
            "ignore_eos": True, "return_token_ids": True,
        }  # fmt: skip
        choices = json.loads(read(f"{address}/v1/completions", json.dumps(every)))["choices"]
        assert [choice["token_ids"] for choice in choices] == expected["outputs"]
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(timeout=30)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
    counts = r"lattice-bpd: \d+ drafts of \d+ tokens, \d+ verified, "
    assert re.search(counts, log.read_text()), log.read_text()[-4000:]
