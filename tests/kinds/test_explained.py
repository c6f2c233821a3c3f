import pytest
import torch

from interp.kinds.explained import (
    PAIRS,
    SAMPLE,
    START,
    Asked,
    Examples,
    Explained,
    evenly,
    explain,
    outside_sinks,
)
from interp.kinds.mass import FromPattern, FromQK, visible_keys
from interp.kinds.targets import NONE, ordinary, positions, previous_token
from interp.kinds.vocabulary import offset

LENGTH = 40


def case(most=64, seed=0):
    """Two rows, the second one short, with random queries and keys of 4 heads."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.arange(2 * LENGTH).view(2, LENGTH)
    tokens[1, 30:] = NONE
    q, k = (
        torch.randn(2, 4, LENGTH, 8, generator=generator),
        torch.randn(2, 2, LENGTH, 8, generator=generator),
    )
    scores = (q @ k.repeat_interleave(2, 1).mT).masked_fill(
        torch.ones(LENGTH, LENGTH).triu(1) > 0, -torch.inf
    )
    pattern = scores.softmax(-1)
    streamed = FromQK(q, k, scores.logsumexp(-1), 1.0)
    keys = {"near": previous_token(tokens), "both": offset(3)(tokens)}
    keys["both"] = torch.cat([keys["both"], keys["near"]], -1)
    asked = Asked.of(
        tokens,
        keys,
        counted=ordinary(tokens),
        seen=visible_keys(tokens),
        last=positions(tokens),
        most=most,
    )
    sinks = torch.zeros(2, 4, LENGTH, dtype=torch.bool)
    sinks[..., 0] = sinks[:, 1, 20] = True
    return pattern, streamed, asked, sinks


def rest(pattern, b, h, q, sinks):
    """The keys outside sinks of a query, and the attention to them."""
    keys = [k for k in range(q + 1) if not sinks[b, h, k]]
    return keys, [pattern[b, h, q, k].item() for k in keys]


def test_each_pair_counts_once_outside_the_sinks_of_the_head():
    pattern, _, asked, sinks = case()
    found = explain(FromPattern(pattern), asked, sinks)
    for b, length in enumerate((40, 30)):
        for h in range(4):
            total = {"near": 0.0, "both": 0.0, "all": 0.0, "even": 0.0}
            for q in range(START, length):
                keys, weights = rest(pattern, b, h, q, sinks)
                hit = [k for k in keys if k == q - 3]
                total["near"] += sum(w for k, w in zip(keys, weights, strict=True) if k == q - 1)
                total["both"] += sum(w for k, w in zip(keys, weights, strict=True) if k in hit)
                total["all"] += sum(weights)
                total["even"] += sum(weights) * len(hit) / len(keys)
            assert found.outside[b, h].item() == pytest.approx(total["all"], abs=1e-5)
            assert found.on["near"][b, h].item() == pytest.approx(total["near"], abs=1e-5)
            assert found.on["both"][b, h].item() == pytest.approx(total["both"], abs=1e-5)
            assert found.even["both"][b, h].item() == pytest.approx(total["even"], abs=1e-5)
    for share, sums in ((found.share, found.on), (found.null, found.even)):
        assert torch.allclose(share, (sums["near"] + sums["both"]).sum(0) / found.outside.sum(0))


def test_streamed_attention_gives_the_same_numbers():
    pattern, streamed, asked, sinks = case(most=7)
    dense, other = (explain(one, asked, sinks) for one in (FromPattern(pattern), streamed))
    assert torch.allclose(dense.outside, other.outside, atol=1e-5)
    assert torch.allclose(dense.share, other.share, atol=1e-6)
    assert torch.allclose(dense.null, other.null, atol=1e-6)


def test_rows_join_and_targets_of_single_heads_come_last():
    pattern, _, asked, sinks = case()
    every = asked.visible[:, None].expand(-1, 4, -1, -1).clone()
    every[:, 0] = False
    found = explain(FromPattern(pattern), asked, sinks, {"own": every, "again": every})
    assert found.share[1:].tolist() == pytest.approx([1.0] * 3)
    assert found.null[1:].tolist() == pytest.approx([1.0] * 3)
    assert found.share[0] == explain(FromPattern(pattern), asked, sinks).share[0]
    assert not found.on["again"].any()
    twice = Explained.join([found, found])
    assert torch.equal(twice.share, found.share)
    assert len(twice.outside) == 4


def test_the_unexplained_pairs_are_the_strongest_one_a_key():
    pattern, _, asked, sinks = case()
    examples = explain(FromPattern(pattern), asked, sinks).examples
    weights, places = examples.weight, examples.pairs
    for h in range(4):
        best: dict[tuple[int, int], tuple[float, int]] = {}
        for b, length in enumerate((40, 30)):
            for q in range(START, length):
                for k, weight in zip(*rest(pattern, b, h, q, sinks), strict=True):
                    if k not in (q - 1, q - 3):
                        best[b, k] = max(best.get((b, k), (0.0, 0)), (weight, q))
        ranked = sorted(best.items(), key=lambda pair: -pair[1][0])[:PAIRS]
        assert places[h].tolist() == [[b, q, k] for (b, k), (_, q) in ranked]
        assert weights[h].tolist() == pytest.approx([weight for _, (weight, _) in ranked])


def test_every_query_of_a_short_text_has_its_engagement_and_strongest_key():
    pattern, _, asked, sinks = case()
    found = explain(FromPattern(pattern), asked, sinks).examples
    assert found.queries.tolist() == [
        *([0, q] for q in range(START, 40)),
        *([1, q] for q in range(START, 30)),
    ]
    for h in range(4):
        for at, (b, q) in enumerate(found.queries.tolist()):
            keys, weights = rest(pattern, b, h, q, sinks)
            assert found.engaged[h, at].item() == pytest.approx(sum(weights), abs=1e-5)
            assert found.on_key[h, at].item() == pytest.approx(max(weights), abs=1e-6)
            assert found.key[h, at] == keys[weights.index(max(weights))]


def test_a_long_text_keeps_the_same_sample_in_whichever_pieces_it_comes():
    rows = []
    for number in range(24):
        attention = torch.rand(1, 2, 60, 60, generator=torch.Generator().manual_seed(number))
        tokens, queries = torch.arange(60)[None] + number, torch.arange(60)[None]
        asked = Asked(tokens, queries, torch.ones(1, 60, 60).bool(), {})
        rows.append(Examples.of(attention, attention, asked))
    whole = Examples.join(rows)
    pieces = Examples.join([Examples.join(rows[:7]), Examples.join(rows[7:9] + rows[9:])])
    assert whole.rows == 24
    assert len(whole.queries) == SAMPLE
    for name in ("pairs", "weight", "queries", "engaged", "key", "on_key"):
        assert torch.equal(getattr(whole, name), getattr(pieces, name)), name
    assert whole.queries[:, 0].unique().tolist() == [*range(24)]


def test_queries_are_spread_evenly_and_see_only_their_window():
    counted = torch.ones(1, 100, dtype=torch.bool)
    assert evenly(counted, 4).tolist() == [[12, 37, 62, 87]]
    assert evenly(counted[:, :3], 4).tolist() == [[0, 1, 2]]
    tokens = torch.arange(LENGTH)[None]
    asked = Asked.of(
        tokens,
        {"far": offset(9)(tokens)},
        counted=ordinary(tokens),
        seen=visible_keys(tokens, 6),
        last=positions(tokens),
    )
    assert asked.queries.tolist() == [[*range(START, LENGTH)]]
    assert asked.visible[0, 0].nonzero().flatten().tolist() == [*range(START - 5, START + 1)]
    assert not asked.union.any()


def test_attention_to_sinks_is_left_out():
    pattern, _, asked, sinks = case()
    outside, free = outside_sinks(FromPattern(pattern), asked, sinks)
    assert not outside[:, 1, :, 20].any()
    assert not free[:, 1, :, 20].any()
    assert free[0, 0, -1].sum() == LENGTH - 1
