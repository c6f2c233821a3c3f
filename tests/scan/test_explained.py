"""How much of the attention the kinds explain, by a scan: the same as from dense patterns."""

import pandas as pd
import pytest
import torch
from tiny_models import tiny, words_tokenizer

import interp
from interp.kinds.builtin import KINDS
from interp.kinds.explained import START
from interp.kinds.mass import FromPattern
from interp.kinds.sinks import Search, find_sinks

NAMES = ["duplicate_token", "previous_token", "local_window"]


@pytest.fixture(scope="module")
def model():
    """A tiny model whose first layer attends evenly."""
    plain = tiny("llama", max_position_embeddings=160)
    torch.nn.init.zeros_(plain.model.layers[0].self_attn.q_proj.weight)
    plain.model.layers[1].self_attn.q_proj.weight.data *= 40
    return interp.load_model(plain, words_tokenizer())


@pytest.fixture(scope="module")
def scans(model):
    """The scan with the explained share, and without."""
    text = " ".join(f"w{3 + i * i % 190}" for i in range(400))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("interp.kinds.probes.passages", lambda: {"words": text})
        options = {"rows": 6, "length": 70, "kinds": [*NAMES, "sink"], "quick": True}
        return [interp.scan_heads(model, explained=on, **options) for on in (True, False)]


def test_a_scan_explains_as_much_as_dense_patterns_do(model, scans):
    """Rows are so short that every query from `START` on counts."""
    (probe,) = (one for one in scans[0].made_by["probes"] if one["parts"] == ["text"])
    tokens = torch.tensor([list(map(int, row.split())) for row in probe["tokens"]])
    named = torch.zeros_like(tokens).bool()
    named[:, 0] = True
    fit = ~named
    targets = {}
    for name in NAMES:
        keys = KINDS[name](tokens, special=model.special, width=8, causal=True)
        there = torch.zeros(*tokens.shape, tokens.shape[1] + 1).bool()
        targets[name] = there.scatter(-1, keys.where(keys >= 0, tokens.shape[1]), True)[..., :-1]
    rows = [interp.attention_patterns(model, row).as_subclass(torch.Tensor) for row in tokens]
    patterns = torch.cat(rows, 1).transpose(0, 1).flatten(1, 2)  # [row, layer * head, query, key]
    sinks = find_sinks(FromPattern(patterns), Search.of(fit), named, share=0.1, least=16)
    free = ~sinks.columns(named)[:, :, None] & torch.ones(70, 70).tril().bool()
    free[:, :, :START] = False
    outside, left = (patterns * free).double(), free.clone()
    frame = scans[0].explained().to_frame()
    total, share, null = outside.sum((0, 2, 3)), 0, 0
    even = outside.sum(-1, keepdim=True) / free.sum(-1, keepdim=True).clamp(min=1)
    for name in NAMES:
        hit = left & targets[name][:, None]
        left &= ~hit
        part = (outside * hit).sum((0, 2, 3)) / total
        assert frame[f"explained_by_{name}"].tolist() == pytest.approx(part.tolist(), abs=1e-5)
        share, null = share + part, null + (even * hit).sum((0, 2, 3)) / total
    asked = len(tokens) * (70 - START)
    assert frame["outside_sinks"].tolist() == pytest.approx((total / asked).tolist(), abs=1e-5)
    assert frame["explained"].tolist() == pytest.approx(share.tolist(), abs=1e-5)
    assert frame["explained_null"].tolist() == pytest.approx(null.tolist(), abs=1e-5)
    ours = scans[0].explained()
    assert ours.share == pytest.approx(((share * total).sum() / total.sum()).item(), abs=1e-5)
    assert ours.null == pytest.approx(((null * total).sum() / total.sum()).item(), abs=1e-5)
    assert ours.low < ours.share < ours.high
    assert ((frame["explained_low"] < share) & (share < frame["explained_high"]))[4:].all()


def test_even_attention_is_explained_as_much_as_by_chance(scans):
    frame = scans[0].explained().to_frame()
    first = frame["explained"].to_numpy()[:4]
    assert first.tolist() == pytest.approx(frame["explained_null"].tolist()[:4], abs=1e-6)
    assert abs(frame["explained"] - frame["explained_null"])[4:].max() > 0.01


def test_other_columns_stay_the_same_and_the_record_says_how(scans):
    on, off = scans
    added = [name for name in on.frame if name not in off.frame]
    assert added == [n for n in on.frame if "explained" in n or n == "outside_sinks"]
    assert on.frame.drop(columns=added).equals(off.frame)
    how = on.made_by["explained"]
    assert (how["first_query"], how["most_queries"]) == (START, 64)
    assert off.made_by == {name: of for name, of in on.made_by.items() if name != "explained"}


def test_examples_have_their_texts_in_frames_the_table_and_the_page(model, scans, tmp_path):
    scans[0].save(tmp_path / "heads.json")
    share = interp.HeadScan.load(tmp_path / "heads.json").explained()
    (probe,) = (one for one in scans[0].made_by["probes"] if one["parts"] == ["text"])
    rows = [model.texts_of(torch.tensor([*map(int, row.split())])) for row in probe["tokens"]]
    for frame in (share.examples, share.engagement):
        for one in frame.to_dict("records"):
            for side in ("query", "key"):
                at, text = one[f"{side}_position"], rows[one["row"]]
                assert one[f"{side}_token"] == text[at]
                assert one[f"{side}_before"] == "".join(text[max(0, at - 8) : at])
                assert one[f"{side}_after"] == "".join(text[at + 1 : at + 4])
    first = share.examples.groupby("name").first()
    for name, words in zip(scans[0].frame["name"], scans[0].frame["unexplained"], strict=True):
        assert words.startswith(f"{first['query_token'][name]} → {first['key_token'][name]} (")
    by_head = share.engagement.groupby("name")
    assert by_head["decile"].max().eq(10).all()
    assert by_head["engaged"].apply(lambda x: x.is_monotonic_increasing).all()
    mean = by_head["engaged"].mean()
    for name, outside in zip(share.frame["name"], share.frame["outside_sinks"], strict=True):
        assert mean[name] == pytest.approx(outside, abs=0.02)
    page = interp.gallery(scans[0], interp.attention_patterns(model, "w3 w4 w3 w5")).head("L1H0")
    assert page._rows[0]["examples"]["unexplained"][0]["key"]["token"] == first["key_token"]["L1H0"]


def test_preferred_keys_explain_after_the_kinds_on_text_they_were_not_fitted_on(model, scans):
    text = " ".join(f"w{3 + i * i % 190}" for i in range(900))
    options = {"length": 70, "kinds": [*NAMES, "sink"], "quick": True, "rows": 6}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("interp.kinds.probes.passages", lambda: {"words": text})
        scan = interp.scan_heads(model, explained="preferred", **options)
        with pytest.raises(interp.InputError, match="text to fit preferred keys on"):
            interp.scan_heads(model, explained="preferred", **options | {"rows": 40})
    frame, without = scan.frame, scans[0].frame
    for name in NAMES:
        pd.testing.assert_series_equal(
            frame[f"explained_by_{name}"], without[f"explained_by_{name}"]
        )
    gain = frame["explained"] - without["explained"]
    assert gain.tolist() == pytest.approx(frame["explained_by_preferred"].tolist(), abs=1e-6)
    assert (gain[4:] > 0).all()
    more = frame["explained_null"] - without["explained_null"]
    # At most a tenth of the keys, which an even head gives a tenth of its attention.
    assert (more < 0.13).all()
    assert gain[:4].tolist() == pytest.approx(more[:4].tolist(), abs=1e-6)
    assert all(len(words.split(", ")) == 5 for words in frame["preferred"])


@pytest.mark.parametrize("ending", ["json", "csv"])
def test_the_share_survives_a_file(scans, tmp_path, ending):
    scans[0].save(tmp_path / f"heads.{ending}")
    before, after = (
        scan.explained() for scan in (scans[0], interp.HeadScan.load(tmp_path / f"heads.{ending}"))
    )
    assert after.share == pytest.approx(before.share, abs=1e-5)
    assert f"{before.share:.3f}" in repr(before)
    assert f"null {before.null:.3f}" in repr(after)
    assert (after.low is None) == (ending == "csv")


def test_a_scan_that_did_not_measure_it_says_what_to_do(model, scans):
    with pytest.raises(interp.InputError, match="scan must be made with explained=True"):
        scans[1].explained()
    without = interp.scan_heads(tiny("gpt2"), rows=1, quick=True, explained=True)
    with pytest.raises(interp.InputError, match="no text of more than 16 tokens was run"):
        without.explained()
    with pytest.raises(interp.InputError, match="kinds must have one besides the sink"):
        interp.scan_heads(model, kinds="sink", explained=True)
