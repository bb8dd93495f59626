"""A command line run in this process, with the heavy commands replaced by recorders."""

import sys
import types

import pytest

from boldcast.cli import run


class Recorder:
    """Stands for the function behind a command; remembers how it was called."""

    def __init__(self, returns=0):
        self.returns = returns
        self.calls = []

    def __call__(self, *args, **kwargs):
        self.calls.append((args, kwargs))
        if isinstance(self.returns, BaseException):
            raise self.returns
        return self.returns


@pytest.fixture
def replace(monkeypatch):
    """Put a module with one recorder in the place of a heavy one; return the recorder."""

    def put(module, name, returns=0):
        recorder = Recorder(returns)
        made = types.ModuleType(module)
        setattr(made, name, recorder)
        monkeypatch.setitem(sys.modules, module, made)
        return recorder

    return put


@pytest.fixture
def train(replace):
    return replace("boldcast.cli.train_command", "train")


@pytest.fixture
def selftest(replace):
    return replace("boldcast.selftest", "run")


@pytest.fixture
def cli(capsys):
    """Run a command line; return its exit code, stdout and stderr."""

    def call(*argv):
        code = run(list(argv))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call
