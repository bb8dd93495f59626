import pytest
import torch
import torch.nn.functional as F

from boldcast.model.mixer import _import_mamba2
from boldcast.model.scan import ssd_chunked, ssd_sequential

LENGTHS_AND_CHUNKS = [
    (1, 4),
    (2, 4),
    (7, 4),
    (8, 4),
    (13, 1),
    (13, 5),
    (33, 64),
    (64, 16),
    (65, 64),
]


def inputs(n_volumes, n_groups=1, dtype=torch.float64, seed=0):
    """Six tensors like those of a freshly initialized block: dt about 0.1, decay rates 1 to 16."""
    rng = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=rng, dtype=torch.float64).to(dtype)

    n_heads, headdim, d_state = 4, 3, 5
    x = normal(2, n_volumes, n_heads, headdim)
    dt = F.softplus(normal(2, n_volumes, n_heads) - 2)
    a = -torch.exp(torch.rand(n_heads, generator=rng, dtype=torch.float64) * 2.77).to(dtype)
    b, c = (normal(2, n_volumes, n_groups, d_state) for _ in range(2))
    return [x, dt, a, b, c, normal(n_heads)]


def run(fn, tensors, *chunk):
    x, dt, a, b, c, d = tensors
    return fn(x, dt, a, b, c, *chunk, d)


def relative(found, truth):
    largest = truth.abs().max().double().clamp(min=1e-30)
    return ((found.double() - truth.double()).abs().max() / largest).item()


def test_sequential_against_closed_form():
    # One channel, one state, constant input: s_t is a geometric series.
    x, dt, a = torch.ones(1, 6, 1, 1).double(), torch.full((1, 6, 1), 0.5).double(), -torch.ones(1)
    b, c = torch.full((1, 6, 1, 1), 3.0).double(), torch.full((1, 6, 1, 1), 2.0).double()
    ratio = torch.exp(torch.tensor(-0.5).double())
    t = torch.arange(1, 7).double()
    expected = 0.5 * 3.0 * 2.0 * (1 - ratio**t) / (1 - ratio) + 0.25
    found = ssd_sequential(x, dt, a.double(), b, c, torch.tensor([0.25]).double())
    torch.testing.assert_close(found.flatten(), expected, rtol=1e-14, atol=0)


@pytest.mark.parametrize(("n_volumes", "chunk_size"), LENGTHS_AND_CHUNKS)
@pytest.mark.parametrize("n_groups", [1, 2, 4])
def test_chunked_equals_sequential_in_float64(n_volumes, chunk_size, n_groups):
    tensors = [t.requires_grad_() for t in inputs(n_volumes, n_groups)]
    truth, found = run(ssd_sequential, tensors), run(ssd_chunked, tensors, chunk_size)
    assert relative(found, truth) < 1e-14
    weights = torch.randn(
        truth.shape, dtype=truth.dtype, generator=torch.Generator().manual_seed(1)
    )
    gradients = zip(
        torch.autograd.grad(found, tensors, weights),
        torch.autograd.grad(truth, tensors, weights),
        strict=True,
    )
    for mine, reference in gradients:
        assert mine.shape == reference.shape
        assert relative(mine, reference) < 1e-13


def test_chunked_without_direct_path():
    tensors = inputs(9)[:5]
    assert relative(ssd_chunked(*tensors, chunk_size=4), ssd_sequential(*tensors)) < 1e-14


def test_gradcheck():
    tensors = [t[:1, :5] if t.ndim > 1 else t for t in inputs(5, n_groups=2)]
    tensors = [t.clone().requires_grad_() for t in tensors]
    assert torch.autograd.gradcheck(lambda *t: run(ssd_chunked, t, 2), tensors)


@pytest.mark.parametrize("chunk_size", [16, 64, 256])
def test_float32_error_does_not_grow_with_the_chunk(chunk_size):
    tensors = inputs(512, dtype=torch.float32, seed=3)
    truth = run(ssd_sequential, [t.double() for t in tensors])
    assert relative(run(ssd_chunked, tensors, chunk_size), truth) < 4e-7


def test_strong_decay_stays_finite_in_values_and_gradients():
    # The running sum of dt * a passes -10,000; exp of its negative would overflow.
    tensors = inputs(128, dtype=torch.float32)
    tensors[1] = torch.full_like(tensors[1], 10.0)
    tensors = [t.requires_grad_() for t in tensors]
    found = run(ssd_chunked, tensors, 64)
    assert relative(found.detach(), run(ssd_sequential, [t.double() for t in tensors])) < 1e-6
    assert all(g.isfinite().all() for g in torch.autograd.grad(found.sum(), tensors))


def test_causal_bitwise():
    tensors = inputs(40, dtype=torch.float32)
    before = run(ssd_chunked, tensors, 16)
    changed = [t.clone() for t in tensors]
    for t in (changed[0], changed[1], changed[3], changed[4]):
        t[:, 23:] = 7.0
    assert torch.equal(run(ssd_chunked, changed, 16)[:, :23], before[:, :23])


def test_against_the_package_references():
    _import_mamba2()
    from mamba_ssm.modules.ssd_minimal import ssd_minimal_discrete
    from mamba_ssm.ops.selective_scan_interface import selective_scan_ref
    from mamba_ssm.ops.triton.ssd_combined import ssd_chunk_scan_combined_ref

    for n_groups in (1, 2):
        tensors = inputs(64, n_groups)
        tensors[1] = tensors[1].float().double()  # the second reference rounds dt to float32
        x, dt, a, b, c, d = tensors
        found = run(ssd_chunked, tensors, 24)
        per_head = [t.repeat_interleave(4 // n_groups, dim=2) for t in (b, c)]
        minimal, _ = ssd_minimal_discrete(x * dt[..., None], dt * a, *per_head, 16)
        assert relative(found, minimal + d[:, None] * x) < 1e-14
        combined = ssd_chunk_scan_combined_ref(x, dt, a, b, c, 16, d)
        assert relative(found, combined) < 1e-14

        headdim, d_state = x.shape[-1], b.shape[-1]
        single = selective_scan_ref(  # Mamba-1's reference works in float32
            x.flatten(2).transpose(1, 2).float(),
            dt.repeat_interleave(headdim, dim=2).transpose(1, 2).float(),
            a.repeat_interleave(headdim)[:, None].expand(-1, d_state).float(),
            b.permute(0, 2, 3, 1).float(),
            c.permute(0, 2, 3, 1).float(),
            d.repeat_interleave(headdim).float(),
        )
        assert relative(single.transpose(1, 2).unflatten(2, x.shape[2:]), found) < 1e-6
