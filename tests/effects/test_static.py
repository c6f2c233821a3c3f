"""Relations in the weights of heads: planted ones are found, shuffled ones are not."""

import pytest
import torch
from tiny_models import tiny, words_tokenizer

import interp
from interp.effects.static import COPYING, SUPPRESSION, StaticScores, static_scores
from interp.weights.direct import Readout

PAIRS = [(20 + i, 40 + i) for i in range(6)]
RELATIONS = {
    "planted": PAIRS,
    "other": [(s, t) for (s, _), (_, t) in zip(PAIRS, PAIRS[3:] + PAIRS)],
}


@pytest.fixture(scope="module")
def scores():
    """L0H1 writes the unembedding of each t for s, L0H2 that of s itself with the sign turned."""
    plain = tiny("llama")
    model = interp.load_model(plain, words_tokenizer())
    attention, embed = plain.model.layers[0].self_attn, plain.get_input_embeddings().weight.detach()
    source, target = (torch.tensor(side) for side in zip(*PAIRS))
    with torch.no_grad():
        plain.model.layers[0].input_layernorm.weight.fill_(1)
        scaled = embed[source] / embed[source].square().mean(-1, keepdim=True).sqrt()
        attention.v_proj.weight[:8] = 0
        attention.v_proj.weight[:6] = torch.linalg.pinv(scaled).T  # [value, d_model]
        U = plain.get_output_embeddings().weight.detach()
        attention.o_proj.weight[:, 8:14] = torch.linalg.pinv(U - U.mean(0))[:, target] * 10
        attention.o_proj.weight[:, 0:6] = -torch.linalg.pinv(U - U.mean(0))[:, source] * 10
    return model, static_scores(model, RELATIONS, top=3, through_mlp=False, in_context=True)


def test_a_planted_relation_is_found_and_its_shuffle_is_not(scores):
    frame = scores[1].to_frame().set_index(["relation", "name"])
    planted = frame.loc[("planted", "L0H1")]
    assert (planted["score"], planted["within"], planted["pairs"]) == (1, 1, 6)
    assert planted["null_99"] < 0.9
    assert frame.loc[("other", "L0H1"), "score"] <= planted["null_99"]
    assert frame.loc[(SUPPRESSION, "L0H0"), "score"] > 0.4 > frame.loc[(COPYING, "L0H0"), "score"]


def test_scores_are_shares_of_the_rows_of_the_full_matrix(scores):
    model, found = scores
    layer = model.plain.model.layers[1]
    x = model.plain.get_input_embeddings().weight[[s for s, _ in PAIRS]].detach()
    x = x / (x.square().mean(-1, keepdim=True) + layer.input_layernorm.variance_epsilon).sqrt()
    v = (x * layer.input_layernorm.weight) @ layer.self_attn.v_proj.weight[:8].T
    readout = Readout(model)
    logits = v @ layer.self_attn.o_proj.weight[:, 8:16].T @ (readout.W_U @ readout.tail).T
    top = logits.topk(3).indices.tolist()
    share = sum(t in row for (_, t), row in zip(PAIRS, top)) / 6
    frame = found.to_frame().set_index(["relation", "name"])
    assert frame.loc[("planted", "L1H1"), "score"] == pytest.approx(share)


def test_effects_in_prompts_stand_next_to_the_weights(scores):
    frame = scores[1].to_frame()
    assert frame["in_context"].notna().equals(frame["relation"].isin(["planted", "other"]))
    assert [*scores[1].correlations().index] == ["planted"]


def test_scores_are_saved_and_shown(scores, tmp_path):
    found = scores[1]
    found.save(tmp_path / "static.json")
    again = StaticScores.load(tmp_path / "static.json")
    assert again.to_frame().equals(found.to_frame())
    assert "planted L0H1 1.00" in repr(again)
    assert [*again.summary()["correlations"]] == ["planted"]


def test_words_must_be_single_tokens_and_pairs_enough(scores):
    model, _ = scores
    words = {"words": [(f"w{i}", f"w{i + 1}") for i in range(10, 16)], "few": PAIRS[:4]}
    found = static_scores(model, words)
    assert found.made_by["left_out"] == ["few"]
    assert {*found.to_frame()["relation"]} == {"words", COPYING, SUPPRESSION}
    with pytest.raises(interp.InputError, match="pairs of single tokens"):
        static_scores(model, {"long": [("w1 w2", "w3")] * 9})
    with pytest.raises(interp.InputError, match="must be of token ids"):
        static_scores(tiny("gpt2"), {"words": [("a", "b")] * 5})
