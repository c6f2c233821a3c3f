"""Patterns in the forms in which people have them, through every entrance."""

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from invoked import invoke
from tiny_models import tiny
from two_layers import HEADS, IDS, LABELS, LENGTH, STACK, planted

import interp
from interp.errors import InputError
from interp.patterns.definitions import scores_by_definition
from interp.patterns.read import take
from interp.scan.given import first_prompt

ONE_PROMPT = STACK[:, 0]  # [layer, head, query, key]


def labels(source: Any, tokens: Any = None) -> list[str]:
    return [f"{head.head} {head.label}" for head in interp.classify_heads(source, tokens)]


EXPECTED = labels(STACK, IDS)
LAYERS_OF_ONE_PROMPT = {
    "array": lambda: ONE_PROMPT,
    "numpy, transposed in memory": lambda: ONE_PROMPT.numpy().transpose().copy().transpose(),
    "list of layers": lambda: [*ONE_PROMPT],
    "tuple of numpy layers": lambda: tuple(ONE_PROMPT.numpy()),
    "nested lists": lambda: ONE_PROMPT.tolist(),
    "mapping": lambda: {"attentions": ONE_PROMPT},
    "by layer": lambda: dict(enumerate(ONE_PROMPT)),
    "bfloat16": lambda: ONE_PROMPT.bfloat16(),
}


@pytest.mark.fault("C28")
@pytest.mark.parametrize("make", LAYERS_OF_ONE_PROMPT.values(), ids=LAYERS_OF_ONE_PROMPT)
def test_layers_of_one_prompt_need_no_axis_of_prompts(make, tmp_path):
    assert labels(make(), IDS) == labels(make(), [IDS]) == EXPECTED
    assert torch.equal(interp.read_patterns(make(), IDS), STACK)
    np.save(tmp_path / "p.npy", ONE_PROMPT.numpy())
    assert labels(tmp_path / "p.npy", IDS) == EXPECTED


@pytest.mark.fault("C28")
def test_four_axes_that_fit_no_reading_are_refused_by_their_names():
    with pytest.raises(
        InputError, match=r"\[batch, head, .* of 3 rows .*, or \[layer, head, .* \(2,"
    ):
        interp.classify_heads(ONE_PROMPT, [IDS] * 3)
    # As one array, averages over heads would pass for heads.
    for averaged in ([*ONE_PROMPT[:, 0]], [[*ONE_PROMPT[0]]]):
        with pytest.raises(InputError, match="patterns"):
            interp.classify_heads(averaged, IDS)


def last(count: int) -> torch.Tensor:
    return ONE_PROMPT[:, :, -count:]


@pytest.mark.fault("C29")
def test_the_last_rows_of_a_pattern_are_those_queries_by_name():
    for source in (last(9)[0], [*last(9)[:1]], last(9)[:1, None]):
        heads = interp.classify_heads(source, IDS)
        assert [head.label for head in heads] == LABELS[:2]
        assert heads[1].scores["induction"] == 1
    read = interp.read_patterns(last(3)[0], IDS)
    assert torch.equal(read[0, 0, :, -3:], ONE_PROMPT[0, :, -3:])
    assert not read[..., :-3, :].any()
    assert f"queries from {LENGTH - 3} on" in repr(read)
    again = interp.classify_heads(read)
    assert again == interp.classify_heads(last(3)[0], IDS)
    assert {head.label for head in again} == {"not enough tokens"}
    page = interp.gallery(again, read)
    shown = page.prompts[0].pattern(interp.Head(0, 1))
    assert torch.equal(shown[-3:], ONE_PROMPT[0, 1, -3:])
    assert not shown[:-3].any()
    with pytest.raises(InputError, match="padding among the last 3"):
        interp.classify_heads(last(3)[0], [*IDS[:-1], -1])
    with pytest.raises(InputError, match="must be causal"):
        interp.classify_heads(torch.eye(LENGTH)[None, -3:].roll(1, -1), IDS)


@pytest.mark.fault("C29", "B44")
def test_steps_of_generation_without_the_prompt_are_the_last_rows():
    model = tiny("llama")
    model.set_attn_implementation("eager")
    output = model.generate(
        torch.tensor([IDS]),
        max_new_tokens=5,
        min_new_tokens=5,
        output_attentions=True,
        return_dict_in_generate=True,
    )
    whole = interp.read_patterns(output)
    part = interp.read_patterns(output.attentions[1:], output.sequences)
    assert torch.equal(part[..., LENGTH:, :], whole[..., LENGTH:, :])
    assert part.first_query == LENGTH


@pytest.fixture
def broken() -> torch.Tensor:
    stack = STACK.clone()
    stack[1, 0, 0, 5, 3] = torch.nan
    return stack


@pytest.mark.fault("C30")
def test_a_head_that_is_not_finite_is_named_and_the_others_are_labelled(broken):
    heads = interp.classify_heads(broken, IDS)
    assert [head.label for head in heads] == [*LABELS[:2], "not finite", LABELS[3]]
    assert heads[2].scores == {}
    with pytest.warns(UserWarning, match="these heads are not finite: L1H0"):
        read = interp.read_patterns(broken, IDS)
    for source in (read, broken):
        page = interp.gallery(heads, source, IDS)
        assert [*map(str, page.heads)] == ["L0H0", "L0H1", "L1H1"]
        assert "Not finite, and not shown: L1H0." in page.notes
    with pytest.raises(InputError, match="heads must have finite attention, got L1H0"):
        interp.gallery(heads, broken, IDS, heads=["L1H0"])
    scores = scores_by_definition(broken, IDS, ["sink_mean"])["sink_mean"]
    assert scores.isnan().tolist() == [[False, False], [True, False]]
    for read_in in (interp.classify_heads, interp.read_patterns):
        with pytest.raises(InputError, match="NaN or infinity in every head"):
            read_in(torch.full_like(STACK, torch.inf), IDS)


@pytest.mark.fault("C16", "C30")
def test_files_with_odd_layers_are_read_by_scripts_as_by_functions(broken, tmp_path):
    layers = {"layer2": STACK[0][:, 1:], "layer5": broken[1]}
    arrays = {name: layer.numpy() for name, layer in layers.items()}
    np.savez(tmp_path / "p.npz", tokens=np.array(IDS), **arrays)
    expected = interp.classify_heads(tmp_path / "p.npz")
    given = ["--patterns", tmp_path / "p.npz", "--format", "png"]
    done = invoke("find_induction_heads", *given, "--out", tmp_path / "tables")
    assert done.returncode == 0, done.stderr
    assert "not finite: L5H0" in done.stdout
    table = interp.HeadScan.load(tmp_path / "tables" / "heads.csv").frame
    assert table["name"].tolist() == [str(head.head) for head in expected]
    assert table["label"].tolist() == [head.label for head in expected]
    given[-1] = "html,png"
    done = invoke("render_gallery", *given, "--draw", "page,zoo,layers", "--out", tmp_path / "page")
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "page" / "gallery.html").read_text(encoding="utf-8")
    healthy = [str(head.head) for head in expected if head.label != "not finite"]
    assert [name for name in table["name"] if f'id="w0-{name}"' in page] == healthy
    shown = first_prompt(take(tmp_path / "p.npz"))
    assert [layer.shape[1] for layer in shown.arrays] == [x.shape[1] for x in arrays.values()]


@pytest.mark.fault("C34")
def test_a_query_that_looks_ahead_is_first_of_all_one_of_padding():
    model = tiny("llama")
    model.set_attn_implementation("eager")
    ids = torch.tensor([[0, 0, 0, *IDS], [4, 5, 6, *IDS]])
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    output = model(ids, attention_mask=mask, output_attentions=True)
    across = torch.rand(1, 2, LENGTH, LENGTH).softmax(-1)
    for source, tokens in ((output, ids), (across, IDS)):
        with pytest.raises(InputError) as caught:
            interp.classify_heads(source, tokens)
        message = str(caught.value)
        assert 0 < message.find("mark padding as -1") < message.find("causal=False")
    assert interp.classify_heads(output, {"input_ids": ids, "attention_mask": mask})


@pytest.mark.fault("C36")
def test_definitions_take_what_labels_take():
    names = ["stripe", "sink_mean"]
    expected = scores_by_definition(HEADS, torch.tensor([IDS]), names)
    array = HEADS.numpy()
    for source in (HEADS[0], array, array[0], HEADS.double(), HEADS.bfloat16()):
        for tokens in (IDS, np.array(IDS), [IDS], {"input_ids": [IDS]}):
            scores = scores_by_definition(source, tokens, names)
            assert all(torch.equal(scores[name], expected[name]) for name in names)
    for source in (STACK, [*STACK], ONE_PROMPT, interp.read_patterns(STACK, IDS)):
        scores = scores_by_definition(source, IDS, names)
        assert all(torch.equal(scores[name][0], expected[name]) for name in names)
        assert all(torch.equal(scores[name][1], expected[name].flip(0)) for name in names)
    read = interp.read_patterns(STACK, IDS)
    assert scores_by_definition(read).keys() == scores_by_definition(STACK, IDS).keys()
    mixed = {"layer0": HEADS, "layer1": HEADS[:, :1]}
    for wrong in (mixed, last(3)[0]):
        with pytest.raises(InputError, match="patterns must"):
            scores_by_definition(wrong, IDS, names)


REFUSED = {
    "pickled tensors": (lambda: "attention.pt", IDS, ".safetensors"),
    "texts for ids": (lambda: STACK, ["The", "cat"], "tokens must be"),
    "queries and keys in the other order": (lambda: STACK.mT, IDS, "must be causal"),
    "percent": (lambda: 100 * STACK, IDS, "sum to 1, got 100"),
    "dropout": (lambda: torch.dropout(STACK, 0.5, True), IDS, r"call model.eval\(\) first"),
    "logits with their attention": (lambda: (torch.rand(1, LENGTH, 9), (HEADS,)), IDS, "axes"),
    "heads last": (lambda: planted("previous")[..., None].repeat(1, 1, 2), IDS, "match"),
    "one head alone": (lambda: planted("previous"), IDS, r"must be \[head, query, key\]"),
    "head by head": (lambda: {"layer0_head0": planted("previous")}, IDS, "by layer"),
}


@pytest.mark.parametrize(("make", "tokens", "message"), REFUSED.values(), ids=REFUSED)
def test_what_would_give_wrong_numbers_is_refused_in_one_line(make, tokens, message):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for read in (interp.classify_heads, interp.read_patterns, scores_by_definition):
            with torch.random.fork_rng(), pytest.raises(InputError, match=message) as caught:
                read(make(), tokens)
            assert "\n" not in str(caught.value)
