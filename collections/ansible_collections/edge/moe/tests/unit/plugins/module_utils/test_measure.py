# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.edge.moe.plugins.module_utils import _measure
from ansible_collections.edge.moe.plugins.module_utils._host import CommandResult, Host
from hypothesis import given
from hypothesis import strategies as st

PROMPTS = [
    {"id": "en-1", "lang": "en", "text": "Why does a river bend?"},
    {"id": "ko-1", "lang": "ko", "text": "강은 왜 굽어 흐를까?"},
]
GPU = "/sys/class/devfreq/17000000.gpu"
UNIT = "edge-moe-server.service"


def answer(**more: Any) -> dict[str, Any]:
    return {
        "content": "물은 흐른다",
        "tokens": [5, 6, 7],
        "timings": {
            "prompt_n": 9,
            "prompt_ms": 90.0,
            "prompt_per_second": 100.0,
            "predicted_n": 3,
            "predicted_ms": 300.0,
            "predicted_per_second": 10.0,
        },
        **more,
    }


def as_json(status: int, body: Any) -> Callable[[Any], tuple[int, bytes]]:
    return lambda _request: (status, json.dumps(body).encode())


# Parsers


def test_block_stat() -> None:
    text = "   81234      12 6912345   45678   11 0 88 5 0 100 200 0 0 0 0 0 0\n"
    assert _measure.parse_block_stat(text) == 6912345 * 512
    assert _measure.parse_block_stat("") is None
    assert _measure.parse_block_stat("1 2 x 4") is None


def test_major_faults_behind_any_name() -> None:
    rest = "S 1 70 70 0 -1 4194304 25500 0 4321 0 100 50 0 0 20 0 9 0 1234 1 2"
    for name in ("llama-server", "a) b (c", "x y", "((", ""):
        assert _measure.parse_major_faults(f"70 ({name}) {rest}") == 4321
    assert _measure.parse_major_faults("") is None
    assert _measure.parse_major_faults("70 (a) S 1") is None


def test_unified_mount() -> None:
    assert _measure.parse_unified_mount("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0") == "/sys/fs/cgroup"
    hybrid = "tmpfs /sys/fs/cgroup tmpfs ro 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n"
    assert _measure.parse_unified_mount(hybrid) == "/sys/fs/cgroup/unified"
    assert _measure.parse_unified_mount("") is None


def test_an_answer() -> None:
    parsed = _measure.parse_answer(200, json.dumps(answer()).encode())
    assert parsed["text"] == "물은 흐른다"
    assert parsed["tokens"] == [5, 6, 7]
    assert (parsed["n_decoded"], parsed["n_prompt"]) == (3, 9)
    assert (parsed["decode_tokens_per_s"], parsed["prefill_tokens_per_s"], parsed["prefill_ms"]) == (10.0, 100.0, 90.0)
    assert parsed["text_sha256"] == hashlib.sha256("물은 흐른다".encode()).hexdigest()


def test_texts_that_are_no_utf8_differ_in_their_hash() -> None:
    def body(raw: bytes) -> bytes:
        return json.dumps(answer(content="X")).encode().replace(b'"X"', b'"' + raw + b'"')

    one, two = _measure.parse_answer(200, body(b"\xff")), _measure.parse_answer(200, body(b"\xfe"))
    assert "\ufffd" in one["text"]
    assert one["text_sha256"] != two["text_sha256"]
    half = _measure.parse_answer(200, body(b"\\ud800"))
    half["text"].encode()


def test_one_token_has_no_rate() -> None:
    timings = {**answer()["timings"], "predicted_n": 1, "predicted_per_second": 1e6}
    assert _measure.parse_answer(200, json.dumps(answer(timings=timings)).encode())["decode_tokens_per_s"] is None
    timings = {**answer()["timings"], "predicted_per_second": float("inf")}
    assert _measure.parse_answer(200, json.dumps(answer(timings=timings)).encode())["decode_tokens_per_s"] is None


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (503, b'{"error":{"code":503,"message":"Loading model"}}', "answers 503: Loading model"),
        (500, b"<html>", "no JSON"),
        (200, b"[]", "answers 200"),
        (200, b'{"content":"x"}', "no timings"),
        (200, b"", "no JSON"),
    ],
)
def test_answers_that_are_none(status: int, body: bytes, says: str) -> None:
    with pytest.raises(_measure.MeasureError, match=says):
        _measure.parse_answer(status, body)


@given(st.binary(max_size=200))
def test_any_answer_is_read_or_refused(body: bytes) -> None:
    with pytest.raises(_measure.MeasureError):
        _measure.parse_answer(200, body)


@given(st.text(max_size=200))
def test_any_text_passes_the_parsers(text: str) -> None:
    _measure.parse_block_stat(text)
    _measure.parse_major_faults(text)
    _measure.parse_unified_mount(text)
    _measure.parse_unit_properties(text)


def test_clock_summary() -> None:
    summary = _measure.summarise_clock({306_000_000: 20, 1_019_900_000: 80}, 306_000_000, 1_020_000_000)
    assert summary is not None
    assert summary["share_at_max"] == 0.8
    assert summary["max_hz_seen"] == 1_019_900_000
    assert summary["samples"] == 100
    assert _measure.summarise_clock({}, 1, 2) is None


def test_deltas() -> None:
    before = {"hits": {"decode": 10, "prefill": 0}, "errors": None, "tokens": 4}
    after = {"hits": {"decode": 25, "prefill": 1}, "errors": 3, "tokens": 9}
    assert _measure.counter_delta(before, after) == {"hits": {"decode": 15, "prefill": 1}, "errors": None, "tokens": 5}


# A whole measurement against a small server


class Board:
    """A board below a directory. Each request to its server moves the counters as a real one would."""

    def __init__(self, host: Any, web: Any) -> None:
        self.host, self.web, self.count = host, web, 0
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

    def complete(self, _request: Any) -> tuple[int, bytes]:
        self.write(f"{GPU}/cur_freq", "1020000000\n")
        self.web.release.wait(0.15)
        self.count += 1
        self.write_counters()
        self.write(f"{GPU}/cur_freq", "306000000\n")
        return 200, json.dumps(answer(content=self.text)).encode()


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
            f"/sys/fs/cgroup/edge.slice/edge-moe.slice/{UNIT}/memory.swap.max": "0\n",
        },
        {"systemctl": f"MainPID=77\nControlGroup=/edge.slice/edge-moe.slice/{UNIT}\n"},
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
    assert result["warnings"] == []


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
    web.answers["/completion"] = as_json(200, answer())
    run = _measure.Session(make_host({}), _measure.Client(web.url, 5.0), None, "nvme0n1", 0.0)
    result = run.run(PROMPTS, 3, 1, 5.0)
    for key in ("nvme_bytes", "major_faults", "gpu", "cache", "cache_info", "floor", "memory_swap_max"):
        assert result[key] is None, key
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


def test_a_server_that_dies_is_told(board: Board) -> None:
    def die(_request: Any) -> tuple[int, bytes]:
        raise ConnectionAbortedError

    board.web.answers["/completion"] = die
    with pytest.raises(_measure.MeasureError, match="may have died"):
        session(board).run(PROMPTS, 3, 1, 5.0)


def test_a_unit_that_does_not_run_is_told(board: Board) -> None:
    board.host.commands["systemctl"] = CommandResult(0, "MainPID=0\nControlGroup=\n", "", None)
    with pytest.raises(_measure.MeasureError, match="is not running"):
        session(board).run(PROMPTS, 3, 1, 5.0)


def test_control_groups_cannot_lead_elsewhere(board: Board) -> None:
    board.host.commands["systemctl"] = CommandResult(0, "MainPID=77\nControlGroup=/../../etc\n", "", None)
    assert _measure.Unit(board.host, UNIT).swap_max() is None


def test_input_that_is_none(board: Board) -> None:
    with pytest.raises(_measure.MeasureError, match="no prompts"):
        session(board).run([], 3, 1, 5.0)
    with pytest.raises(_measure.MeasureError, match="http://HOST:PORT"):
        _measure.Client("ftp://x", 1.0)
    assert not _measure.valid_device("../sda")
    assert _measure.valid_device("nvme0n1p1")
