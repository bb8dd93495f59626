from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from boldcast.config.resolve import as_dict, digest, to_toml
from boldcast.config.schema import Config
from boldcast.files import sha256_bytes, write_bytes
from boldcast.record import provenance, topology
from boldcast.record.manifest import seal
from boldcast.record.trace import TraceWriter


@pytest.fixture(scope="session")
def blocks() -> dict[str, Any]:
    config = Config(name="fabricated", seed=3)
    return {
        "requested": {
            "argv": ["boldcast", "train"],
            "config": as_dict(config),
            "config_digest": digest(config),
        },
        "code": provenance.code(),
        "image": provenance.image(),
        "data": {
            "digest": "0" * 64,
            "files": [{"sha256": sha256_bytes(b"scan"), "shape": [4, 1], "t_r": 0.72}],
            "splits": {"train": {"scans": 1}},
            "notes": [],
        },
        "seeds": {"seed": 3},
        "numerics": {"level": "exact", "environment": provenance.environment()},
        "parallel": {"strategy": "single", "world_size": 1, "ranks": [{"device": "cpu"}]},
        "hardware": {"nodes": [topology.node()]},
        "software": provenance.software(),
    }


@pytest.fixture(scope="session")
def fabricate(blocks: dict[str, Any]) -> Callable[[Path], Path]:
    """Make a run folder as a finished training leaves it, sealed."""

    def fabricate(run: Path) -> Path:
        checkpoint = run / "checkpoints" / "step_00000002"
        checkpoint.mkdir(parents=True)
        for name in ("model.safetensors", "optimizer.safetensors"):
            write_bytes(checkpoint / name, name.encode() * 3)
        listing = {p.name: sha256_bytes(p.read_bytes()) for p in sorted(checkpoint.iterdir())}
        text = json.dumps(listing, sort_keys=True, separators=(",", ":")) + "\n"
        write_bytes(checkpoint / "digests.json", text.encode())
        write_bytes(run / "config.toml", to_toml(Config(name="fabricated", seed=3)).encode())
        write_bytes(run / "model.safetensors", bytes(range(64)))
        write_bytes(run / "evaluation.json", b'{"mse":0.5}\n')
        write_bytes(run / "report.html", b"<html></html>")
        with TraceWriter(run / "trace.jsonl") as trace:
            for step in (1, 2):
                trace.append(step, loss=1 / step, grad_norm=0.3, lr=1e-3)
        seal(run, blocks, {"status": "completed", "steps": 2, "scores": {"mse": 0.5}}, [])
        return run

    return fabricate


@pytest.fixture
def make_run(tmp_path: Path, fabricate: Callable[[Path], Path]) -> Callable[[], Path]:
    return lambda: fabricate(tmp_path / "run")


@pytest.fixture
def run(make_run: Callable[[], Path]) -> Path:
    return make_run()
