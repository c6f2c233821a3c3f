import pytest
import torch
from torch import Tensor

from interp.attention.multihead import MultiHead, multi_head_attention
from interp.attention.reference import causal_mask
from interp.course.designed import (
    D_HEAD,
    EXAMPLE,
    NAMES,
    REST,
    Sentence,
    designed_layer,
    embed,
    mixed_pattern,
)
from interp.errors import InputError

LONG = Sentence(tuple(f"w{i % 20}" for i in range(40)), nouns=(3, 9), pronouns=(7, 30))
ON = torch.ones(4)


def run(sentence: Sentence, window: int = 4, gates: Tensor = ON, W_V=None) -> MultiHead:
    x = embed(sentence)[None]
    layer = designed_layer(sentence, window=window, gates=gates, W_V=W_V)
    return multi_head_attention(x, layer, mask=causal_mask(len(sentence.words)))


def head(sentence: Sentence, name: str, window: int = 4) -> Tensor:
    return run(sentence, window).pattern[0, NAMES.index(name)]


both = pytest.mark.parametrize("sentence", [EXAMPLE, LONG], ids=["example", "long"])


@both
def test_sharp_heads_attend_to_the_previous_and_to_the_first_token(sentence):
    assert (head(sentence, "previous token").diagonal(-1) >= 1 - REST).all()
    assert (head(sentence, "sink")[:, 0] >= 1 - REST).all()


@both
def test_a_pronoun_attends_to_the_nouns_before_it_and_other_words_evenly(sentence):
    pattern = head(sentence, "noun to pronoun")
    for place, row in enumerate(pattern):
        if place in sentence.pronouns:
            before = [noun for noun in sentence.nouns if noun < place]
            assert row[before].sum() >= 1 - REST
            assert torch.allclose(row[before], row[before].mean())
        else:
            assert torch.allclose(
                row[: place + 1], torch.full((place + 1,), 1 / (place + 1)).double()
            )


@both
@pytest.mark.parametrize("window", [1, 2, 3, 4, 8])
def test_the_local_head_stays_within_its_window_and_uses_all_of_it(sentence, window):
    pattern = head(sentence, "local window", window)
    inside = pattern.triu(1 - window).sum(-1)
    assert (inside >= 0.85).all()
    for query in range(window - 1, len(sentence.words)):
        row = pattern[query, query - window + 1 : query + 1]
        assert torch.allclose(row, row.flip(0))  # Symmetric within the window.
        if query >= window:
            outside = pattern[query, query - window]
            assert torch.allclose(row[0] / outside, torch.tensor(2.0).double().exp())


def test_the_matrices_are_rotations_and_of_rank_one():
    layer = designed_layer(EXAMPLE, window=4, gates=ON)
    W_Q, W_K = (w.unflatten(1, (4, D_HEAD)).movedim(1, 0) for w in (layer.W_Q, layer.W_K))
    W_QK = W_Q @ W_K.mT
    assert torch.linalg.matrix_rank(W_QK).tolist() == [2, 2, 1, 1]
    for turn in W_QK[:2, 4:6, 4:6]:
        size = turn.det().sqrt()
        assert torch.allclose(turn @ turn.T, size**2 * torch.eye(2).double())
    places = embed(EXAMPLE)[:, 4:6]
    back = places @ W_QK[0, 4:6, 4:6]
    assert torch.allclose(back[1:] / back[1:].norm(dim=-1, keepdim=True), places[:-1])


@pytest.mark.parametrize("gates", [[1, 0, 0, 0], [0.5, 0.2, 0, -1]])
def test_with_one_v_mixed_patterns_give_mixed_outputs(gates):
    gates = torch.tensor(gates).double()
    done = run(EXAMPLE, gates=gates)
    values = embed(EXAMPLE)[:, 6:]
    mixed = mixed_pattern(done.pattern[0], gates)
    assert torch.allclose(done.out[0], mixed @ values)
    assert torch.allclose(mixed.sum(-1), gates.sum())


def test_with_a_v_per_head_no_mixed_pattern_determines_the_output():
    W_V = torch.randn(4, 14, 5, generator=torch.Generator().manual_seed(0)).double()
    done, swapped = run(EXAMPLE, W_V=W_V), run(EXAMPLE, W_V=W_V[[3, 1, 2, 0]])
    patterns = [mixed_pattern(d.pattern[0], ON) for d in (done, swapped)]
    assert torch.equal(*patterns)  # The same mixed pattern ...
    assert (done.out - swapped.out).abs().max() > 1  # ... but another output.
    shared = patterns[0] @ (embed(EXAMPLE) @ W_V.mean(0))
    assert (done.out[0] - shared).abs().max() > 1


def test_a_switch_turns_its_head_off_and_nothing_else():
    for off in range(4):
        gates = ON.clone()
        gates[off] = 0
        done = run(EXAMPLE, gates=gates)
        assert torch.equal(done.pattern, run(EXAMPLE).pattern)
        only = run(EXAMPLE, gates=1 - gates)
        assert torch.allclose(done.out + only.out, run(EXAMPLE).out)


def test_a_window_or_position_outside_the_sentence_is_refused():
    for window in (0, 9):
        with pytest.raises(InputError, match=r"^window must"):
            designed_layer(EXAMPLE, window=window, gates=ON)
    with pytest.raises(InputError, match=r"^nouns and pronouns must"):
        Sentence(EXAMPLE.words, (-1,), ())
