"""Mass from queries, keys and log-sum-exps equals mass from the pattern."""

import pytest
import torch

from interp.kinds.mass import FromPattern, FromQK, Joined, attention_mass, norms, score_bound
from interp.kinds.targets import Blocks


def test_mass_from_queries_and_keys_is_mass_from_the_pattern():
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(2, h, 40, 16, generator=generator) for h in (6, 2))
    scores = (0.5 * q @ k.repeat_interleave(3, 1).mT).masked_fill(
        torch.ones(40, 40).triu(1).bool(), -torch.inf
    )
    lse, pattern = scores.logsumexp(-1), scores.softmax(-1)
    keys = torch.randint(-1, 40, (2, 40, 3), generator=generator)
    keys = torch.where(keys > torch.arange(40)[:, None], -1, keys)
    ours = FromQK(q, k, lse, 0.5).mass(keys)
    # float32 sums in another order.
    assert torch.allclose(ours, attention_mass(pattern, keys), atol=1e-5)
    near = torch.arange(40)[:, None] - torch.arange(8)
    near = torch.where(near < 0, -1, near).expand(2, -1, -1)
    ours = FromQK(q, k, lse, 0.5).mass(near)
    assert torch.allclose(ours, attention_mass(pattern, near), atol=1e-5)


EXACT = {
    "float32": (torch.float32, torch.float32, 1.0, {}),
    "bfloat16": (torch.bfloat16, torch.float32, 1.0, {}),
    "float16": (torch.float16, torch.float32, 1.0, {}),
    "scores of 1e4": (torch.float32, torch.float64, 1e4, {}),
    "scores of 1e8": (torch.float32, torch.float64, 123456789.0, {}),
    "soft-capped scores of 1e6": (torch.float32, torch.float64, 1e6, {"softcap": 30.0}),
    "soft-capped in bfloat16": (torch.bfloat16, torch.float64, 1e6, {"softcap": 30.0}),
}


@pytest.mark.parametrize(("dtype", "finest", "times", "caps"), EXACT.values(), ids=EXACT)
def test_mass_from_queries_and_keys_is_exact_in_every_format_at_every_scale(
    dtype, finest, times, caps
):
    generator = torch.Generator().manual_seed(0)
    q, k = (3 * torch.randn(1, 2, 60, 80, generator=generator).to(dtype) for _ in range(2))
    scale = times * 80**-0.5
    scores = scale * q.double() @ k.double().mT
    if caps:
        scores = 30 * torch.tanh(scores / 30)
    scores = scores.masked_fill(torch.ones(60, 60).triu(1) > 0, -torch.inf)
    keys = torch.randint(0, 60, (1, 60, 3), generator=generator)
    keys = torch.where(keys > torch.arange(60)[:, None], -1, keys)
    mass = FromQK(q, k, scores.logsumexp(-1).to(finest), scale, **caps).mass(keys)
    # A float32 score of 60 is off by 4e-6.
    assert (mass - attention_mass(scores.softmax(-1), keys)).abs().max() < 2e-5


def test_vectors_whose_squares_overflow_have_a_length():
    q = torch.tensor([1e30, 2.0, torch.nan]).expand(1, 1, 2, 3).mT  # [1, 1, pos=3, d_head=2]
    lengths = norms(q)
    assert torch.allclose(
        lengths, torch.tensor([1e30, 2.0, torch.nan]).double() * 2**0.5, equal_nan=True
    )
    assert score_bound(lengths, norms(torch.full_like(q, 1e-10)), -1.0).tolist() == [
        pytest.approx(2e20)
    ]


QUERY, KEY = torch.arange(40)[:, None], torch.arange(40)
SLOPES = torch.linspace(0, 0.5, 6)
RULES = {
    "all keys": (QUERY >= KEY, {}),
    "window": ((QUERY >= KEY) & (QUERY - KEY < 9), {"window": 9}),
    "chunks": ((QUERY >= KEY) & (QUERY // 9 == KEY // 9), {"window": Blocks(9)}),
    "ALiBi": (QUERY >= KEY, {"slopes": SLOPES}),
}


def attended(rule: str) -> tuple[FromQK, torch.Tensor]:
    """Attention from queries and keys under a rule, and its pattern."""
    seen, options = RULES[rule]
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(2, h, 40, 16, generator=generator) for h in (6, 2))
    scores = 0.5 * q @ k.repeat_interleave(3, 1).mT
    if "slopes" in options:
        scores = scores - SLOPES[:, None, None] * (QUERY - KEY)
    scores = scores.masked_fill(~seen, -torch.inf)
    return FromQK(q, k, scores.logsumexp(-1), 0.5, **options), scores.softmax(-1)


@pytest.mark.parametrize("rule", RULES)
def test_rows_and_columns_from_queries_and_keys_are_the_patterns(rule):
    generator = torch.Generator().manual_seed(0)
    ours, pattern = attended(rule)
    two = ours, FromPattern(pattern)
    queries = torch.tensor([[0, 3, 39], [7, 8, -1]])
    columns = torch.randint(-1, 40, (2, 6, 4), generator=generator)
    for ours, theirs in (
        [attention.rows(queries) for attention in two],
        [attention.on_columns(columns) for attention in two],
        [attention.means().entropy for attention in two],
        [attention.means().distance for attention in two],
    ):
        assert torch.allclose(ours, theirs, atol=2e-5)  # float32 sums in another order.


@pytest.mark.parametrize("pairs", [7, 10**6])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    "keys",
    [
        pytest.param(lambda query: torch.stack([query - 30, query - 31], -1), id="far slices"),
        pytest.param(lambda query: torch.stack([query % 5, query // 2], -1), id="pairs"),
        pytest.param(lambda query: torch.stack([query + 1, query + 3], -1), id="the future"),
        pytest.param(lambda query: torch.stack([query, query], -1), id="twice the same"),
    ],
)
def test_any_keys_get_from_queries_and_keys_what_the_pattern_gives_them(
    pairs, rule, keys, monkeypatch
):
    monkeypatch.setattr(FromQK, "PAIRS", pairs)
    attention, pattern = attended(rule)
    asked = keys(torch.arange(40)).expand(2, -1, -1)
    asked = torch.where((asked < 0) | (asked >= 40), -1, asked)
    ours, theirs = attention.mass(asked), attention_mass(pattern, asked)
    assert torch.allclose(ours, theirs, atol=1e-5)  # float32 sums in another order.


@pytest.mark.parametrize("rule", RULES)
def test_joined_targets_get_the_sum_of_what_each_kind_gets_alone(rule):
    query, (attention, pattern) = torch.arange(40), attended(rule)
    keys = {
        "near, one of them twice": torch.stack([query, query - 3, query - 3], -1),
        "far": torch.stack([query - 15, query - 16, query - 30], -1),
        "any": torch.stack([query % 5, query + 1], -1),
        "none": query[:, None] - 40,
    }
    keys = {kind: torch.where(at < 40, at, -1).clamp(min=-1) for kind, at in keys.items()}
    keys = {kind: at.expand(2, -1, -1) for kind, at in keys.items()}
    counted = torch.rand(2, 40, generator=torch.Generator().manual_seed(0)) < 0.7
    joined = Joined.of(keys, counted)
    alone = [(attention_mass(pattern, at) * counted[:, None]).sum(-1) for at in keys.values()]
    for ours in (attention.totals(joined), FromPattern(pattern).totals(joined)):
        assert torch.allclose(ours, torch.stack(alone), atol=1e-4)  # float32 sums in another order.
