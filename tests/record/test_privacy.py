from __future__ import annotations

import pytest

from boldcast.record import privacy

UUID = "GPU-00000000-1111-2222-3333-444444444444"


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (["/usr/bin/boldcast", "train"], ["boldcast", "train"]),
        (["b", "--api_key", "abc", "--seed"], ["b", "--api_key", "<redacted>", "--seed"]),
        (["b", "--hf-token=abc"], ["b", "--hf-token=<redacted>"]),
        (["b", "--password", "--seed"], ["b", "--password", "--seed"]),
        (["b", "hf_abcdefghijkl"], ["b", "<redacted>"]),
        (["b", "https://me:pw@host/x"], ["b", "https://<redacted>@host/x"]),
        (["b", "/home/ann/data/x.toml"], ["b", "<path>/x.toml"]),
        (["b", "--data=/home/ann"], ["b", "--data=~"]),
        (["b", "--data=/home/ann/"], ["b", "--data=~"]),
        (["b", "/home/anna/x"], ["b", "<path>/x"]),
        (["b", "/scratch/ann/x"], ["b", "<path>/x"]),
        (["b", "--data", "/scratch/ann"], ["b", "--data", "<path>/<user>"]),
        (["b", "/my runs/a b/c d"], ["b", "<path>/c d"]),
        (["b", "--run_dir=/my runs/c d"], ["b", "--run_dir=<path>/c d"]),
        (["b", "https://x.org/a/b"], ["b", "https://x.org/a/b"]),
        (["b", "--data", "rel/home/ann/x"], ["b", "--data", "rel/home/<user>/x"]),
        (["b", "--spatial_k", "3", "monkey"], ["b", "--spatial_k", "3", "monkey"]),
    ],
)  # fmt: skip
def test_argv_is_kept_but_for_secrets_and_people(given: list[str], kept: list[str]) -> None:
    assert privacy.redact_argv(given, home="/home/ann", user="ann") == kept
    assert privacy.redact_argv(kept, home="/home/ann", user="ann") == kept


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("/a/b.so:/c/d.so", "<path>/b.so:<path>/d.so"),
        ("https://x.org/a/b", "https://x.org/a/b"),
        ("error in '/w/x y'", "error in '<path>/x y'"),
        ("train / held out, mm/s", "train / held out, mm/s"),
        (f"0,{UUID}", f"0,{privacy.hashed_gpu(UUID)}"),
        ("0,1", "0,1"),
    ],
)  # fmt: skip
def test_text_is_kept_but_for_paths_and_boards(given: str, kept: str) -> None:
    assert privacy.hidden(given) == kept


def test_subject_hashes_depend_on_subject_and_data_and_hide_both() -> None:
    salt = privacy.subject_salt(b"series")
    one = privacy.hashed_subject("100307", salt)
    assert len(one) == 16
    assert "100307" not in one
    assert one != privacy.hashed_subject("100408", salt)
    assert one != privacy.hashed_subject("100307", privacy.subject_salt(b"other"))
    assert one == privacy.hashed_subject("100307", privacy.subject_salt(b"series"))
