# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.edge.moe.plugins.module_utils import _measure, _server_unit, _watch
from ansible_collections.edge.moe.plugins.module_utils._host import CommandResult, Host

PROMPTS = [
    {"id": "en-1", "lang": "en", "text": "Why does a river bend?"},
    {"id": "ko-1", "lang": "ko", "text": "강은 왜 굽어 흐를까?"},
]
GPU = "/sys/class/devfreq/17000000.gpu"
UNIT = "edge-moe-server.service"
GROUP = f"/sys/fs/cgroup/edge.slice/edge-moe.slice/{UNIT}"


TIMINGS = {
    "prompt_n": 9,
    "prompt_ms": 90.0,
    "prompt_per_second": 100.0,
    "predicted_n": 3,
    "predicted_ms": 300.0,
    "predicted_per_second": 10.0,
}


def streamed(text: str) -> list[bytes]:
    events = [
        {"content": text, "tokens": [5, 6, 7], "stop": False},
        {"content": "", "tokens": [], "stop": True, "timings": TIMINGS},
    ]
    return [f"data: {json.dumps(event)}\n\n".encode() for event in events]


def as_json(status: int, body: Any) -> Callable[[Any], tuple[int, bytes]]:
    return lambda _request: (status, json.dumps(body).encode())


# Parsers


def test_block_stat() -> None:
    text = "   81234      12 6912345   45678   11 0 88 5 0 100 200 0 0 0 0 0 0\n"
    assert _measure.parse_block_stat(text) == 6912345 * 512
    assert _measure.parse_block_stat("") is None
    assert _measure.parse_block_stat("1 2 x 4") is None


def test_deltas() -> None:
    before = {"hits": {"decode": 10, "prefill": 0}, "errors": None, "tokens": 4}
    after = {"hits": {"decode": 25, "prefill": 1}, "errors": 3, "tokens": 9}
    assert _measure.counter_delta(before, after) == {"hits": {"decode": 15, "prefill": 1}, "errors": None, "tokens": 5}


# A whole measurement against a small server


class Board:
    """A board below a directory. Each request to its server moves the counters as a real one would."""

    def __init__(self, host: Any, web: Any) -> None:
        self.host, self.web, self.count = host, web, 0
        self.lock, self.alive = threading.Lock(), True
        self.write_counters()
        self.text = "물은 흐른다"
        web.answers["/health"] = as_json(200, {"status": "ok"})
        web.answers["/completion"] = self.complete

    def write(self, name: str, text: str) -> None:
        path = Path(self.host.path(name))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def write_counters(self) -> None:
        n = self.count
        self.write("/sys/class/block/nvme0n1/stat", f"1 0 {2000 * n} 0 0 0 0 0 0 0 0\n")
        if self.alive:
            self.write("/proc/77/stat", f"77 (llama-server) S 1 7 7 0 -1 0 1 0 {30 * n} 0 1 1 0 0 20\n")
        self.write(
            "/run/edge-moe/cache-77.prom",
            'edge_moe_cache_info{pid="77",mode="cache",reason=""} 1\n'
            f'edge_moe_cache_hits_total{{pid="77",phase="decode"}} {100 + 60 * n}\n'
            f'edge_moe_cache_misses_total{{pid="77",phase="decode"}} {40 * n}\n'
            f'edge_moe_cache_errors_total{{pid="77"}} 0\n',
        )
        self.write(
            "/run/edge-moe/clock-floor.prom",
            f"edge_moe_clock_floor_transitions_total {2 * n}\nedge_moe_clock_floor_raised 0\n",
        )

    def complete(self, _request: Any) -> tuple[int, Iterator[bytes]]:
        def parts() -> Iterator[bytes]:
            self.write(f"{GPU}/cur_freq", "1020000000\n")
            first, last = streamed(self.text)
            time.sleep(0.05)
            yield first
            time.sleep(0.1)
            with self.lock:
                self.count += 1
                self.write_counters()
            self.write(f"{GPU}/cur_freq", "306000000\n")
            yield last

        return 200, parts()


@pytest.fixture
def board(make_host: Callable[..., Host], web: Any) -> Board:
    host = make_host(
        {
            f"{GPU}/device/of_node/name": b"gpu\0",
            f"{GPU}/available_frequencies": "306000000 612000000 1020000000\n",
            f"{GPU}/min_freq": "306000000\n",
            f"{GPU}/max_freq": "1020000000\n",
            f"{GPU}/cur_freq": "306000000\n",
            "/proc/self/mounts": "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n",
            "/proc/swaps": "Filename Type Size Used Priority\n/dev/zram0 partition 100 0 5\n",
            f"{GROUP}/memory.swap.max": "0\n",
            f"{GROUP}/memory.swap.current": "4096\n",
            f"{GROUP}/memory.events": "oom 0\noom_kill 0\n",
            f"{GROUP}/memory.peak": "700000000\n",
        },
        {
            "systemctl": f"MainPID=77\nControlGroup=/edge.slice/edge-moe.slice/{UNIT}\nInvocationID={'a1' * 16}\n",
            "journalctl": "load_tensors: offloaded 0/25 layers to GPU\n",
        },
    )
    return Board(host, web)


def session(board: Board, save: Any = None, device: str | None = "nvme0n1") -> _measure.Session:
    return _measure.Session(board.host, _measure.Client(board.web.url, 5.0), UNIT, device, 0.0, save)


def test_a_measurement(board: Board) -> None:
    result = session(board).run(PROMPTS, 3, 2, 5.0)
    assert [(request["id"], request["round"]) for request in result["requests"]] == [
        ("en-1", 1),
        ("ko-1", 1),
        ("en-1", 2),
        ("ko-1", 2),
    ]
    assert result["complete"] is True
    assert result["decode_tokens_per_s"] == 10.0
    assert result["nvme_bytes"] == 4 * 2000 * 512
    assert [request["nvme_bytes"] for request in result["requests"]] == [2000 * 512] * 4
    assert result["major_faults"] == 120
    assert result["cache"]["hits"]["decode"] == 240
    assert result["cache"]["misses"]["decode"] == 160
    assert result["cache"]["errors"] == 0
    assert result["cache_info"]["mode"] == "cache"
    assert result["floor"]["transitions_delta"] == 8
    assert result["floor"]["raised_after"] == 0
    assert result["memory_swap_max"] == "0"
    assert result["swap_on"] is True
    gpu = result["gpu"]
    assert gpu["max_hz_seen"] == 1_020_000_000
    assert gpu["share_at_max"] > 0.5
    assert gpu["samples"] >= 4
    assert (gpu["after_hold_hz"], gpu["node"]) == (306_000_000, "17000000.gpu")
    assert gpu["shares"]["1020000000"] == gpu["share_at_max"]
    assert result["warnings"] == []
    for request in result["requests"]:
        assert request["at_once"] == 1
        assert 50 <= request["ttft_ms"] < request["latency_ms"]
        assert request["latency_ms"] >= 150
    # a busy machine delays some of them
    assert min(request["ttft_ms"] for request in result["requests"]) < 150
    assert min(request["latency_ms"] for request in result["requests"]) < 1000
    started = [request["started_s"] for request in result["requests"]]
    assert started == sorted(started)
    assert started[0] < 0.1
    assert started[3] >= 0.45
    assert result["ttft_ms"] >= 50
    assert (result["at_once"], result["total_decoded"]) == (1, 12)
    assert 0.6 <= result["wall_s"] < 5
    assert result["memory"] == {"oom_kills": 0, "swap_bytes": 4096, "peak_bytes": 700_000_000}
    assert result["log"]["gpu_layers"] == [0, 25]
    assert result["throttle"] == {"events": {}, "cooling": {}}


def test_several_requests_at_once(board: Board) -> None:
    saved: list[int] = []
    run = session(board, lambda result: saved.append(len(result["requests"])))
    result = run.run([{"id": f"p{n}", "text": "x"} for n in range(4)], 3, 2, 5.0, at_once=4)
    assert saved == [1, 2, 3, 4, 5, 6, 7, 8, 8]
    assert sorted((r["id"], r["round"]) for r in result["requests"]) == [(f"p{n}", r) for n in range(4) for r in (1, 2)]
    assert {request["at_once"] for request in result["requests"]} == {4}
    # Two waves of 0.15 s each, where one after the other would take 1.2 s.
    assert 0.3 <= result["wall_s"] < 0.9
    assert result["total_decoded"] == 24
    # What one of them read cannot be told, only what all did.
    assert {request["nvme_bytes"] for request in result["requests"]} == {None}
    assert {request["major_faults"] for request in result["requests"]} == {None}
    assert result["nvme_bytes"] == 8 * 2000 * 512
    assert result["major_faults"] == 8 * 30


def test_a_server_with_fewer_slots_is_told(board: Board) -> None:
    board.web.answers["/props"] = as_json(200, {"total_slots": 1})
    result = session(board).run(PROMPTS, 3, 1, 5.0, at_once=2)
    assert "works on 1 requests at once" in result["warnings"][0]
    assert session(board).run(PROMPTS[:1], 3, 1, 5.0)["warnings"] == []


@pytest.mark.parametrize("at_once", [0, -1, 65])
def test_how_many_at_once_is_bounded(board: Board, at_once: int) -> None:
    with pytest.raises(_measure.MeasureError, match=f"at_once is {at_once}; it must be between 1 and 64"):
        session(board).run(PROMPTS, 3, 1, 5.0, at_once=at_once)


def test_one_that_fails_ends_those_that_wait(board: Board) -> None:
    asked: list[str] = []

    def fail_second(request: Any) -> Any:
        asked.append(request["prompt"])
        return (500, b'{"error":{"message":"compute error"}}') if len(asked) == 2 else board.complete(request)

    board.web.answers["/completion"] = fail_second
    saved: list[dict[str, Any]] = []
    before = threading.active_count()
    with pytest.raises(_measure.MeasureError, match="compute error"):
        session(board, saved.append).run([{"id": str(n), "text": "x"} for n in range(20)], 3, 1, 5.0, at_once=2)
    assert len(asked) <= 4
    assert saved[-1]["complete"] is False
    # The server of the test keeps its own threads for a moment.
    deadline = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before


def test_a_power_mode_caps_what_counts_as_highest(board: Board) -> None:
    board.write(f"{GPU}/max_freq", "612000000\n")
    assert session(board).run(PROMPTS[:1], 3, 1, 5.0)["gpu"]["highest_hz"] == 612_000_000


def test_what_is_asked_of_the_server(board: Board) -> None:
    session(board).run(PROMPTS, 33, 1, 5.0)
    body = board.web.bodies[1]
    assert body["prompt"] == PROMPTS[1]["text"]
    assert (body["temperature"], body["cache_prompt"], body["return_tokens"], body["n_predict"]) == (0, False, True, 33)


def test_a_cache_that_starts_to_write_during_the_run_counts_from_zero(board: Board) -> None:
    Path(board.host.path("/run/edge-moe/cache-77.prom")).unlink()
    result = session(board).run(PROMPTS[:1], 3, 1, 5.0)
    assert result["cache"]["hits"]["decode"] == 160


def test_a_machine_with_nothing_gives_nulls(make_host: Callable[..., Host], web: Any) -> None:
    web.answers["/health"] = as_json(200, {})
    web.answers["/completion"] = lambda _request: (200, streamed("x"))
    run = _measure.Session(make_host({}), _measure.Client(web.url, 5.0), None, "nvme0n1", 0.0)
    result = run.run(PROMPTS, 3, 1, 5.0)
    for key in ("nvme_bytes", "major_faults", "gpu", "cache", "cache_info", "floor", "memory_swap_max", "log"):
        assert result[key] is None, key
    for key in ("cpu", "power", "heat"):
        assert result[key] is None, key
    assert result["throttle"] == {"events": {}, "cooling": {}}
    assert result["memory"] == {"oom_kills": None, "swap_bytes": None, "peak_bytes": None}
    assert result["swap_on"] is False
    assert result["decode_tokens_per_s"] == 10.0
    assert "bytes read are unknown" in result["warnings"][0]


def test_a_run_that_is_cut_has_written_what_it_measured(board: Board, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    board.web.answers["/completion"] = lambda request: (
        board.complete(request) if board.count < 2 else (500, b'{"error":{"message":"compute error"}}')
    )
    with pytest.raises(_measure.MeasureError, match="compute error"):
        session(board, lambda result: _measure.write_result(str(path), result)).run(PROMPTS, 3, 2, 5.0)
    kept = json.loads(path.read_text())
    assert kept["complete"] is False
    assert [request["text"] for request in kept["requests"]] == ["물은 흐른다"] * 2
    assert [item.name for item in tmp_path.iterdir() if item.name.endswith(".tmp")] == []


def test_a_server_that_loads_is_waited_for(board: Board) -> None:
    states = [(503, b'{"error":{"message":"Loading model"}}'), (200, b"{}")]
    board.web.answers["/health"] = lambda _request: states.pop(0)
    assert session(board).run(PROMPTS[:1], 3, 1, 5.0)["complete"] is True


def test_a_server_that_never_loads_is_given_up(board: Board) -> None:
    board.web.answers["/health"] = as_json(503, {"error": {"message": "Loading model"}})
    with pytest.raises(_measure.MeasureError, match=r"not ready after 0\.2 s .*Loading model"):
        session(board).run(PROMPTS, 3, 1, 0.2)
    with pytest.raises(_measure.MeasureError, match="not ready"):
        _measure.Client("http://127.0.0.1:9", 1.0).wait_healthy(0.1)


@pytest.mark.parametrize("at_once", [1, 3])
def test_a_server_that_dies_is_told_with_how_it_ended(board: Board, at_once: int) -> None:
    def die(_request: Any) -> Any:
        with board.lock:
            board.alive = False
            shutil.rmtree(board.host.path("/proc/77"), ignore_errors=True)
        ended = "MainPID=0\nResult=oom-kill\nExecMainCode=2\nExecMainStatus=9\n"
        board.host.commands["systemctl"] = CommandResult(0, ended, "", None)
        return 200, [*streamed("물은")[:1], None]

    board.web.answers["/completion"] = lambda request: board.complete(request) if not board.count else die(request)
    with pytest.raises(
        _measure.MeasureError,
        match=r"broke a request off .*after 3 tokens.*; edge-moe-server\.service: the kernel killed it for want of "
        r"memory \(Result=oom-kill, ExecMainStatus=9\)",
    ):
        session(board).run(PROMPTS, 3, 4, 5.0, at_once=at_once)


def test_a_connection_that_breaks_while_the_server_runs_on(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_server_unit, "GONE_S", 0.1)
    board.web.answers["/completion"] = lambda _request: (200, [None])
    with pytest.raises(_measure.MeasureError, match=r"see its journal$"):
        session(board).run(PROMPTS, 3, 1, 5.0)


def test_a_server_that_never_came_up_is_told_with_how_it_ended(board: Board) -> None:
    board.web.answers["/health"] = as_json(503, {})
    ended = "MainPID=0\nResult=exit-code\nExecMainCode=1\nExecMainStatus=1\n"
    board.host.commands["systemctl"] = CommandResult(0, ended, "", None)
    with pytest.raises(_measure.MeasureError, match=r"not ready .*; edge-moe-server\.service: it exited with status 1"):
        session(board).run(PROMPTS, 3, 1, 0.1)


def test_a_watch_that_failed_is_a_warning(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_watch.Heat, "sample", lambda _self: 1 / 0)
    result = session(board).run(PROMPTS[:1], 3, 1, 5.0)
    assert "ZeroDivisionError" in result["warnings"][0]
    assert result["decode_tokens_per_s"] == 10.0


def test_a_unit_of_which_nothing_is_known_is_not_said_to_have_ended(board: Board) -> None:
    board.host.commands["systemctl"] = CommandResult(None, "", "", "no answer within 30 s")
    with pytest.raises(_measure.MeasureError, match=r"systemctl tells nothing of the unit .*: no answer within 30 s"):
        session(board).run(PROMPTS, 3, 1, 5.0)


def test_a_unit_that_does_not_run_is_told(board: Board) -> None:
    board.host.commands["systemctl"] = CommandResult(0, "MainPID=0\nControlGroup=\n", "", None)
    with pytest.raises(_measure.MeasureError, match="is not running"):
        session(board).run(PROMPTS, 3, 1, 5.0)


def test_input_that_is_none(board: Board) -> None:
    with pytest.raises(_measure.MeasureError, match="no prompts"):
        session(board).run([], 3, 1, 5.0)
    assert not _measure.valid_device("../sda")
    assert _measure.valid_device("nvme0n1p1")
