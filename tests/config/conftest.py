"""A configuration file with a given text."""

import pytest


@pytest.fixture
def toml(tmp_path):
    def write(text):
        path = tmp_path / "run.toml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write
