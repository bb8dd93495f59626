"""Run the CUDA branch of the model on a CPU, through Triton's interpreter, beside the CPU branch.

A program of its own, because the interpreter must be chosen before triton is imported. Prints one
JSON object: for each case, the largest relative difference of the output and of each gradient.
"""

import contextlib
import json
import os
import types

os.environ["TRITON_INTERPRET"] = "1"
os.environ["MAMBA_DETERMINISTIC"] = "1"

import torch

from boldcast.config.schema import ModelConfig
from boldcast.model.forecaster import build_forecaster
from boldcast.model.mixer import Mamba2Mixer, package_mixer

# The package asks CUDA for a device context and a processor count, and needs no more of it.
torch.cuda.device = lambda index: contextlib.nullcontext()
torch.cuda.get_device_properties = lambda device=None: types.SimpleNamespace(
    multi_processor_count=4
)


def relative(found, truth):
    return ((found - truth).abs().max() / truth.abs().max()).item()


def values_and_gradients(model, x, weights):
    y = model(x)
    names = ["x"] + [name for name, _ in model.named_parameters()]
    gradients = torch.autograd.grad(y, [x, *model.parameters()], weights)
    return {"y": y.detach(), **dict(zip(names, gradients, strict=True))}


def compare(cfg, n_volumes):
    torch.manual_seed(0)
    ours = build_forecaster(cfg, n_regions=3, horizons=(1,), seed=0)
    torch.nn.init.normal_(ours.body.head.weight, std=0.1)  # zero would hide every gradient
    theirs = build_forecaster(cfg, n_regions=3, horizons=(1,), seed=1)
    for layer in theirs.body.layers:
        assert isinstance(layer.inner, Mamba2Mixer)
        layer.inner = package_mixer(cfg)
    theirs.load_state_dict(ours.state_dict(), strict=True)
    x = torch.randn(1, n_volumes, 3, requires_grad=True)
    weights = torch.randn(1, n_volumes, 3, 1)
    truth = values_and_gradients(ours, x, weights)
    found = values_and_gradients(theirs, x, weights)
    return {name: relative(found[name], truth[name]) for name in truth}


sizes = {"d_model": 16, "headdim": 8, "d_state": 16, "n_layer": 1}
print(
    json.dumps(
        {
            "T=33, 1 group": compare(ModelConfig(**sizes, chunk_size=32), 33),
            "T=5, 2 groups": compare(ModelConfig(**sizes, chunk_size=16, ngroups=2), 5),
        }
    )
)
