"""The self-test for real, through the command line: also the system test of everything below."""

import json
import os
import subprocess
import sys

WANTED = {
    "refuses an unknown flag",
    "refuses a NaN in the data",
    "trains on one rank",
    "trains on two ranks",
    "two ranks give the bits of one",
    "killed in the middle",
    "continues, stops when asked",
    "ends with the bits of an undisturbed run",
    "replays bit for bit on two ranks",
    "its record verifies",
    "notices a flipped bit in the weights",
    "notices one changed value in the data",
    "notices another seed",
    "order of windows, 1 rank",
    "order of windows, 2 ranks",
}


def test_everything_holds_on_this_machine(tmp_path):
    temporary = tmp_path / "temporary files"
    temporary.mkdir()
    out = tmp_path / "out.json"
    done = subprocess.run(
        [sys.executable, "-m", "boldcast", "selftest", "--out", str(out)],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_bytes())
    assert {check["name"] for check in found["checks"]} == WANTED
    assert all(check["ok"] for check in found["checks"])
    assert "15 checks, all hold" in done.stdout
    assert list(temporary.iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.json", "temporary files"]
