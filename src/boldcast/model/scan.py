"""The selective state-space recurrence of Mamba-2: the slow truth beside the fast form.

For every head, with state ``s`` (P x N), step ``dt``, decay ``a < 0``::

    s_t = exp(dt_t a) s_{t-1} + dt_t x_t b_t'        y_t = s_t c_t + d x_t

`ssd_sequential` is these two lines. `ssd_chunked` is the same function as matrix products
(state-space duality): inside a chunk of Q volumes the recurrence is a lower-triangular Q x Q
matrix per head, and only chunk boundaries carry a state. Its one numerical danger, the difference
of two large cumulative sums of ``dt a``, is met by taking these sums (a small tensor) in float64.

Shape letters
-------------
B batch, T volumes, R regions, D d_model, H horizons; inside the recurrence: K heads, P channels of
a head, N state size, G groups that share b and c, J = K / G heads of a group, C chunks, Q volumes
of a chunk.

Example
-------
>>> import torch
>>> x, dt = torch.ones(1, 3, 1, 1), torch.ones(1, 3, 1)
>>> one = torch.ones(1, 3, 1, 1)
>>> ssd_chunked(x, dt, torch.zeros(1), one, one, chunk_size=2).flatten().tolist()
[1.0, 2.0, 3.0]
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def ssd_sequential(
    x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor | None = None
) -> Tensor:
    """Run the recurrence one volume after the other, in the dtype of its inputs.

    Parameters
    ----------
    x : Tensor (B, T, K, P)
        Input of every head.
    dt : Tensor (B, T, K)
        Step sizes, positive.
    a : Tensor (K,)
        Decay rates, negative.
    b, c : Tensor (B, T, G, N)
        Input and output vectors of every group; head k belongs to group k // (K / G).
    d : Tensor (K,), optional
        Direct path from x to y.

    Returns
    -------
    Tensor (B, T, K, P)

    Notes
    -----
    Source: Dao and Gu 2024, "Transformers are SSMs", section 2.
    """
    heads_per_group = x.shape[2] // b.shape[2]
    b = b.repeat_interleave(heads_per_group, dim=2)
    c = c.repeat_interleave(heads_per_group, dim=2)
    state = x.new_zeros(x.shape[0], x.shape[2], x.shape[3], b.shape[3])
    outputs = []
    for t in range(x.shape[1]):
        decay = torch.exp(dt[:, t] * a)[..., None, None]
        entering = (dt[:, t, :, None] * x[:, t])[..., :, None] * b[:, t, :, None, :]
        state = decay * state + entering
        outputs.append((state * c[:, t, :, None, :]).sum(-1))
    y = torch.stack(outputs, dim=1)
    return y if d is None else y + d[:, None] * x


def ssd_chunked(
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    chunk_size: int,
    d: Tensor | None = None,
) -> Tensor:
    """Run the same recurrence as matrix products; any T, odd or 1, by zero padding.

    Parameters
    ----------
    x, dt, a, b, c, d : Tensor
        As in `ssd_sequential`.
    chunk_size : int
        Volumes per chunk; alters rounding and speed only.

    Returns
    -------
    Tensor (B, T, K, P)

    Notes
    -----
    Source: Dao and Gu 2024, "Transformers are SSMs", section 6.
    """
    n_batch, n_volumes, n_heads, headdim = x.shape
    n_groups, d_state = b.shape[2:]
    per_group = n_heads // n_groups
    size = min(chunk_size, n_volumes)
    padding = -n_volumes % size
    grouped = torch.unflatten(x, 2, (n_groups, per_group))
    xs = _chunks(grouped * dt.view(*dt.shape[:2], n_groups, per_group, 1), size, padding)
    log_decay = _chunks(torch.unflatten(dt * a, 2, (n_groups, per_group)), size, padding)
    bs = _chunks(b, size, padding).transpose(2, 3)  # B C G Q N
    cs = _chunks(c, size, padding).transpose(2, 3)
    total, within = _decays(log_decay.permute(0, 1, 3, 4, 2))  # B C G J Q and B C G J Q Q

    scores = (cs @ bs.transpose(-1, -2)).unsqueeze(3)  # B C G 1 Q Q, shared by a group's heads
    y = (within * scores) @ xs.permute(0, 1, 3, 4, 2, 5)  # B C G J Q P
    if xs.shape[1] > 1:
        entering = _entering_states(xs, total, bs)  # B C G N (J P)
        carried = torch.unflatten(cs @ entering, -1, (per_group, headdim)).transpose(3, 4)
        y = y + carried * total.exp().to(y.dtype).unsqueeze(-1)
    y = y.permute(0, 1, 4, 2, 3, 5).reshape(n_batch, -1, n_heads, headdim)[:, :n_volumes]
    return y if d is None else torch.addcmul(y, x, d[:, None])


def _chunks(value: Tensor, size: int, padding: int) -> Tensor:
    """Pad T with zeros at its end and split it: (B, T, ...) to (B, C, Q, ...)."""
    if padding:
        value = F.pad(value, (0, 0) * (value.ndim - 2) + (0, padding))
    return torch.unflatten(value, 1, (-1, size))


def _decays(log_decay: Tensor) -> tuple[Tensor, Tensor]:
    """Return the running log decay (..., Q), float64, and the decay from s to q, (..., Q, Q)."""
    total = log_decay.double().cumsum(-1)
    future = torch.ones(total.shape[-1], total.shape[-1], dtype=torch.bool, device=total.device)
    segments = (total.unsqueeze(-1) - total.unsqueeze(-2)).to(log_decay.dtype)
    # Masked before exp: above the diagonal exp would overflow, and infinity times zero is NaN.
    return total, segments.masked_fill_(future.triu_(1), -torch.inf).exp_()


def _entering_states(xs: Tensor, total: Tensor, bs: Tensor) -> Tensor:
    """Return the state with which each chunk begins, (B, C, G, N, J P).

    ``xs`` (B, C, Q, G, J, P) is x times dt, ``total`` (B, C, G, J, Q), ``bs`` (B, C, G, Q, N).
    """
    to_end = (total[..., -1:] - total).exp().to(xs.dtype).permute(0, 1, 4, 2, 3).unsqueeze(-1)
    fading = (xs * to_end).flatten(4).transpose(2, 3)  # B C G Q (J P)
    added = bs.transpose(-1, -2) @ fading  # B C G N (J P)
    across = total[..., -1].exp().to(xs.dtype)  # B C G J
    across = across.repeat_interleave(xs.shape[-1], dim=-1).unsqueeze(3)  # B C G 1 (J P)
    state = torch.zeros_like(added[:, 0])
    states = [state]
    for chunk in range(added.shape[1] - 1):
        state = torch.addcmul(added[:, chunk], state, across[:, chunk])
        states.append(state)
    return torch.stack(states, dim=1)
