"""The hand-built circuits keep the promises of their derivation."""

import itertools
import math

import pytest
import torch
from tiny_models import tiny

import interp
from interp import models
from interp.circuits.absolute import Absolute
from interp.circuits.built import MASS
from interp.circuits.codes import alike, looking_back, steps_for, token_words, twist
from interp.circuits.rotary import Rotary
from interp.kinds.probes import repeated
from interp.kinds.targets import NONE, induction

HEADS = {"absolute": ("L0H3", "L1H5"), "rotary": ("L0H1", "L1H2")}
POSITIONS = list(HEADS)


def heads(positions):
    return [interp.Head.parse(name) for name in HEADS[positions]]


@pytest.fixture(scope="module")
def circuits():
    return {positions: interp.build_circuit(positions, 64, 65) for positions in POSITIONS}


@pytest.fixture(params=POSITIONS)
def circuit(request, circuits):
    return request.param, circuits[request.param]


def run(positions, model, tokens):
    """Attention of the two heads, and the logits."""
    with torch.no_grad():
        done = model.plain(tokens, output_attentions=True)
    one, two = heads(positions)
    return done.attentions[0][:, one.head], done.attentions[1][:, two.head], done.logits


def probe(rows, length=65, vocabulary=64, seed=0):
    return repeated(torch.arange(1, vocabulary), rows=rows, length=length, bos=0, seed=seed)


def measured(positions, model, drawn):
    """Previous-token mass, stripe, rest (each the least of all queries), and accuracy."""
    first, second, logits = run(positions, model, drawn.tokens)
    keys = induction(drawn.tokens)
    stripe = (second.gather(-1, keys.clamp(min=0)) * (keys != NONE)).sum(-1)
    stripe = stripe[(keys != NONE).any(-1)]
    again = drawn.parts["repeated"][:, :-1]
    right = logits[:, :-1].argmax(-1) == drawn.tokens[:, 1:]
    return (
        first.diagonal(-1, dim1=1, dim2=2).min().item(),
        stripe.min().item(),
        second[..., 0][drawn.parts["random"]].min().item(),
        right[again].float().mean().item(),
    )


@pytest.mark.parametrize("bits", [5, 6])
def test_the_products_of_all_words_are_within_their_bounds(bits):
    words = token_words(bits, 4**bits // 2, torch.Generator().manual_seed(0))
    assert words.pow(2).sum(-1).allclose(torch.ones(len(words), dtype=torch.double))
    products = words @ words.T
    products.fill_diagonal_(0)
    highest, largest = alike(bits, len(words))
    assert products.max().item() == pytest.approx(highest)
    assert products.min().item() == pytest.approx(-largest)
    twisted = (words * twist(bits)) @ words.T
    assert twisted.abs().max().item() <= largest + 1e-9


def test_few_words_are_nearly_orthogonal():
    words = token_words(5, 32, torch.Generator().manual_seed(0))
    products = words @ words.T
    products.fill_diagonal_(-1 / 31)
    assert products.sub(-1 / 31).abs().max() < 1e-9
    assert alike(5, 32)[0] == pytest.approx(-1 / 31)


@pytest.mark.parametrize("plan", [Absolute(5, 64, 200), Rotary(5, 64, 200)])
@pytest.mark.parametrize("blur", [0.1, 0.5, 0.9])
def test_blur_is_the_share_that_goes_two_back(plan, blur):
    steps = steps_for(plan.kernel, blur, 60.0)
    share = torch.softmax(60 * looking_back(plan.kernel, steps), 0)
    assert share[1].item() == pytest.approx(1 - blur, abs=1e-6)
    assert share[2].item() == pytest.approx(blur, abs=0.02)


@pytest.mark.parametrize("positions", POSITIONS)
def test_rows_of_random_periods(positions, circuits):
    drawn = probe(300, 49)
    assert len(set(drawn.periods)) > 10
    previous, stripe, rest, accuracy = measured(positions, circuits[positions], drawn)
    # For every query, not on average; rounding takes a little of the promise.
    assert min(previous, stripe, rest) > MASS - 1e-5
    assert accuracy == 1


@pytest.mark.parametrize("positions", POSITIONS)
def test_the_promise_holds_with_many_words_and_at_length(positions):
    model = interp.build_circuit(positions, 600, 400, seed=5)
    previous, stripe, rest, accuracy = measured(positions, model, probe(8, 400, 600, seed=2))
    assert min(previous, stripe, rest) > MASS - 1e-5
    assert accuracy == 1


@pytest.mark.fault("B88", "B89")
@pytest.mark.parametrize("positions", POSITIONS)
def test_every_short_input_does_what_the_rule_says(positions):
    model = interp.build_circuit(positions, 8, 8)
    bodies = torch.tensor(list(itertools.product(range(1, 8), repeat=4)))
    tokens = torch.cat([torch.zeros(len(bodies), 1, dtype=torch.long), bodies], 1)
    first, second, logits = run(positions, model, tokens)
    place = torch.arange(5)
    assert first[:, place[1:], place[:-1]].min() > MASS - 1e-5
    # Keys whose previous token is the query's token; where there is none, BOS.
    match = (tokens[:, None, :-1] == tokens[:, :, None]) & (place[1:] <= place[:, None])
    match = torch.cat([torch.zeros(len(bodies), 5, 1, dtype=torch.bool), match], -1)
    match[:, 0] = False
    matched = match.any(-1)
    assert logits[~matched].abs().max() < 1e-3
    followers = tokens[:, None].expand_as(match).where(match, -1)
    assert (followers[matched] == logits[matched].argmax(-1)[:, None]).any(-1).all()
    match[..., 0] = ~matched
    assert (second * match).sum(-1).min() > MASS - 1e-5


@pytest.mark.fault("B38")
@pytest.mark.parametrize("family", [*POSITIONS, "neox"])
def test_scores_a_million_times_as_large_still_see_no_later_token(family):
    if family in POSITIONS:
        source = interp.build_circuit(family, 16, 16).plain
    else:
        source = tiny(family)
    with torch.no_grad():
        for name, weight in source.named_parameters():
            if any(part in name for part in ("c_attn", "q_proj", "k_proj", "query_key_value")):
                weight *= 1000
    ids = torch.randint(3, 16, (2, 16), generator=torch.Generator().manual_seed(0))
    patterns = interp.attention_patterns(source, ids)
    assert (patterns.triu(1) == 0).all()
    assert torch.allclose(patterns.sum(-1), torch.ones(patterns.shape[:-1]), atol=1e-5)


@pytest.mark.fault("B89")
def test_before_the_first_repeat_all_logits_are_0(circuit):
    positions, model = circuit
    drawn = probe(4)
    logits = run(positions, model, drawn.tokens)[2]
    assert logits[drawn.parts["random"]].abs().max() < 1e-3
    assert logits[drawn.parts["repeated"]].max() > 25


@pytest.mark.parametrize("method", ["stream", "hooks"])
def test_a_scan_names_the_two_heads_and_lets_the_others_rest(circuit, method):
    positions, model = circuit
    scan = interp.scan_heads(model, method=method, rows=4)
    previous, found = heads(positions)
    assert scan.heads("previous token") == [previous]
    assert scan.heads("induction") == [found]
    assert len(scan.heads("sink")) == model.n_layers * model.n_heads - 1
    if method == "stream":
        effects = scan.to_frame().set_index("name")["induction_logit_effect"]
        assert effects[str(found)] > 20
        assert effects.drop(str(found)).abs().max() < 0.01


def test_it_is_a_model_of_transformers_and_survives_its_folder(circuit, tmp_path):
    positions, model = circuit
    models.save(model, tmp_path / "circuit")
    again = interp.load_model(tmp_path / "circuit")
    tokens = probe(2).tokens
    assert torch.equal(again.plain(tokens).logits, model.plain(tokens).logits)
    assert again.plain.config.hand_built["induction_head"] == HEADS[positions][1]
    assert again.to_tokens("the the of").tolist() == model.to_tokens("the the of").tolist()
    half = interp.load_model(tmp_path / "circuit", dtype="bfloat16")
    scan = interp.scan_heads(half, rows=4, quick=True)
    assert [scan.heads(kind)[0] for kind in ("previous token", "induction")] == heads(positions)
    assert measured(positions, half, probe(16))[3] == 1


def test_every_id_has_a_word_of_its_own_wherever_bos_is():
    from interp.circuits.build import words

    listed = words(5000, 4998)
    assert len(set(listed)) == 5000
    assert (listed[0], listed[4997:]) == ("<unk>", ["w4997", "<s>", "w4999"])


def test_text_runs_one_token_a_word(circuit):
    _, model = circuit
    tokens = model.to_tokens("the, of the")
    assert model.texts_of(tokens[0]) == ["<s>", "the", ",", "of", "the"]
    assert model.texts_of(model.to_tokens("nonsuch")[0]) == ["<s>", "<unk>"]
    assert len(model.tokenizer) == 64


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_grouped_heads(kv_heads):
    model = interp.build_circuit("rotary", 64, 65, kv_heads=kv_heads, bos=9)
    assert model.plain.config.num_key_value_heads == kv_heads
    assert model.bos == 9
    drawn = repeated(model.vocabulary, rows=16, length=65, bos=9, seed=0)
    previous, stripe, rest, accuracy = measured("rotary", model, drawn)
    assert min(previous, stripe, rest) > MASS - 1e-5
    assert accuracy == 1


def factors(model, layer, head):
    """W_OV and W_QK, norms having gain 1; LayerNorm's centring changes neither."""
    attention = model.bridge.blocks[layer].attn
    kv = head * attention.W_K.shape[0] // model.n_heads
    W_Q, W_O = (getattr(attention, name)[head].detach().double() for name in ("W_Q", "W_O"))
    W_K, W_V = (getattr(attention, name)[kv].detach().double() for name in ("W_K", "W_V"))
    return W_V @ W_O, W_Q @ W_K.T


def deviations(A, B):
    """|A B|^2 in standard deviations of |A R B|^2 over random rotations R."""
    M, N, d = A.T @ A, B @ B.T, len(A)

    def spread(X):
        return X.pow(2).sum() - X.trace() ** 2 / d

    mean = M.trace() * N.trace() / d
    variance = 2 / ((d - 1) * (d + 2)) * spread(M) * spread(N)
    return (((A @ B).pow(2).sum() - mean) / variance.sqrt()).item()


def test_the_heads_compose_through_keys_alone(circuit):
    positions, model = circuit
    one, two = heads(positions)
    OV, _ = factors(model, *one)
    OV_after, QK = factors(model, *two)
    assert deviations(OV, QK.T) > 100
    assert abs(deviations(OV, QK)) < 1
    assert abs(deviations(OV, OV_after)) < 1


def test_without_the_previous_token_head_there_is_no_induction(circuit):
    positions, _ = circuit
    model = interp.build_circuit(positions, 64, 65, previous=False)
    first, second, logits = run(positions, model, probe(16).tokens)
    assert first[..., 0].min() > 0.999
    assert second[..., 0].min() > 0.999
    assert logits.abs().max() < 1e-3


def test_without_the_match_the_induction_head_rests(circuit):
    positions, _ = circuit
    model = interp.build_circuit(positions, 64, 65, match=False)
    previous, stripe, rest, accuracy = measured(positions, model, probe(16))
    assert min(previous, rest) > 0.999
    assert stripe < 0.001
    assert accuracy < 0.1


def test_a_blurred_previous_token_head(circuit):
    positions, _ = circuit
    model = interp.build_circuit(positions, 64, 65, blur=0.3)
    first, _, _ = run(positions, model, probe(16).tokens)
    assert first.diagonal(-1, dim1=1, dim2=2)[:, 30:].mean().item() == pytest.approx(0.7, abs=0.02)
    assert first.diagonal(-2, dim1=1, dim2=2)[:, 30:].mean().item() == pytest.approx(0.3, abs=0.02)
    assert measured(positions, model, probe(16))[1] < 0.99


@pytest.mark.parametrize("share", [0.25, 1.0])
def test_a_wrong_copy_is_wrong_for_that_share_of_tokens(circuit, share):
    positions, _ = circuit
    model = interp.build_circuit(positions, 65, 65, wrong_copy=share)
    word = torch.arange(1, 65)
    other = word.roll(1)
    tokens = torch.stack([torch.zeros_like(word), other, word, other], 1)
    _, second, logits = run(positions, model, tokens)
    assert second[:, 3, 2].min() > MASS - 1e-5
    assert (logits[:, 3].argmax(-1) != word).sum() == share * 64


def test_less_sharp_is_worse(circuit):
    positions, model = circuit
    dull = interp.build_circuit(positions, 64, 65, sharpness=5.0)
    drawn = probe(16)
    assert measured(positions, dull, drawn)[0] < 0.99 < measured(positions, model, drawn)[0]


def test_the_seed_decides_and_the_global_generator_is_left_alone():
    before = torch.random.get_rng_state()
    one, same, other = (interp.build_circuit("absolute", 16, 16, seed=i) for i in (1, 1, 2))
    assert torch.equal(before, torch.random.get_rng_state())
    W = [model.plain.lm_head.weight for model in (one, same, other)]
    assert torch.equal(W[0], W[1])
    assert not torch.allclose(W[0], W[2])


@pytest.mark.parametrize(
    ("vocabulary", "width"), [(513, 256), (514, 512), (2049, 512), (2050, 1024)]
)
def test_the_width_is_the_least_that_holds_the_vocabulary(vocabulary, width):
    model = interp.build_circuit("absolute", vocabulary, 32)
    assert model.plain.config.n_embd == width


@pytest.mark.fault("C09")
def test_a_rotary_circuit_of_the_longest_rows_keeps_its_promise():
    model = interp.build_circuit("rotary", 64, 4096)
    assert (model.n_ctx, model.plain.config.hidden_size) == (4096, 512)
    assert model.plain.config.rope_parameters["rope_theta"] == 2.0**32
    ids = torch.randint(1, 64, (1, 4096), generator=torch.Generator().manual_seed(0))
    ids[0, 0] = model.bos
    inner = model.plain.model
    inner.layers = inner.layers[:1]
    with torch.no_grad():
        pattern = inner(ids, output_attentions=True).attentions[0][0, 1]
    assert pattern.diagonal(-1).min() > MASS - 1e-5


REFUSED = {
    "positions must": {"positions": "round"},
    "vocabulary must": {"vocabulary": 50257},
    "length must": {"length": 8192},
    "bos must": {"bos": 64},
    "kv_heads must be": {"kv_heads": 3},
    "kv_heads must be left out": {"positions": "absolute", "kv_heads": 2},
    "blur must": {"blur": 1.5},
    "wrong_copy must": {"wrong_copy": math.nan},
    "wrong_copy must be 0 or two tokens": {"wrong_copy": 0.01},
    "sharpness must": {"sharpness": 0.0},
    "seed must": {"seed": -1},
    "previous must": {"previous": "maybe"},
}


@pytest.mark.fault("B88")
@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_built_is_refused(message):
    arguments = {"positions": "rotary", "vocabulary": 64, "length": 65, **REFUSED[message]}
    with pytest.raises(interp.InputError, match=f"^{message}"):
        interp.build_circuit(**arguments)
