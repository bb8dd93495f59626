import pytest
import torch

from boldcast.model.initial import Draw
from boldcast.model.spatial import NeighbourAttention

TABLE = torch.tensor([[0, 1, 4], [1, 0, 2], [2, 3, 1], [3, 4, 2], [4, 0, 3]])


def built(table=TABLE, d_model=6):
    attention = NeighbourAttention(d_model, table)
    attention.initialize(Draw(0), 1.0)
    return attention


def dense(attention, x):
    """All regions attend to all, with the others masked out."""
    q, k, v = attention.query_key_value(x).movedim(1, 0).chunk(3, dim=-1)
    allowed = torch.zeros(len(TABLE), len(TABLE), dtype=torch.bool)
    allowed.scatter_(1, attention.neighbours, True)
    mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
    return attention.out_proj(mixed).movedim(0, 1)


def test_equals_dense_masked_attention_in_float64():
    attention = built().double()
    torch.manual_seed(0)
    x = torch.randn(5, 7, 6, dtype=torch.float64, requires_grad=True)
    found, truth = attention(x), dense(attention, x)
    torch.testing.assert_close(found, truth, rtol=1e-12, atol=1e-14)
    inputs = [x, *attention.parameters()]
    for mine, reference in zip(
        torch.autograd.grad(found.square().sum(), inputs),
        torch.autograd.grad(truth.square().sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(mine, reference, rtol=1e-11, atol=1e-14)


def test_a_region_sees_its_neighbours_and_no_other():
    attention = built()
    x = torch.randn(5, 3, 6)
    before = attention(x)
    x[3] += 1.0
    changed = (attention(x) != before).any(dim=2).any(dim=1)
    assert changed.tolist() == (TABLE == 3).any(dim=1).tolist()


def test_volumes_do_not_mix():
    attention = built()
    x = torch.randn(5, 3, 6)
    before = attention(x)
    x[:, 2] += 1.0
    assert torch.equal(attention(x)[:, :2], before[:, :2])


def test_table_travels_in_the_checkpoint():
    first, second = built(), built()
    assert torch.equal(first.state_dict()["neighbours"], TABLE)
    # safetensors refuses tensors that share memory.
    assert first.neighbours.data_ptr() != second.neighbours.data_ptr()


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        (TABLE.float(), "integers of shape"),
        (TABLE[0], "integers of shape"),
        (TABLE[:, :0], "integers of shape"),
        (TABLE.flip(1), "itself first"),
        (torch.tensor([[0, 2], [1, 0]]), "regions 0 to 1"),
        (torch.tensor([[0, -1], [1, 0]]), "regions 0 to 1"),
        (torch.tensor([[0, 0], [1, 0]]), "twice"),
    ],
)
def test_other_tables_are_errors(table, sentence):
    with pytest.raises(ValueError, match=sentence):
        NeighbourAttention(4, table)
