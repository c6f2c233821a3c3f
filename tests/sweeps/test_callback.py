"""Scans during a training: the training is the same with and without them."""

import pytest
import torch
import transformers
from tiny_models import tiny, words_tokenizer

import interp
from interp.sweeps.callback import ScanCallback


def trained(folder, callbacks):
    rows = [{"input_ids": torch.arange(3, 11), "labels": torch.arange(3, 11)} for _ in range(8)]
    options = transformers.TrainingArguments(
        output_dir=str(folder),
        max_steps=4,
        per_device_train_batch_size=2,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        seed=0,
    )
    model, tokenizer = tiny("gpt2"), words_tokenizer()
    tokenizer.pad_token = "</s>"
    data = {"train_dataset": rows, "processing_class": tokenizer}
    transformers.Trainer(model, options, callbacks=callbacks, **data).train()
    return model


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_training_is_scanned_on_the_way_and_otherwise_the_same(tmp_path):
    callback = ScanCallback(tmp_path / "out", "mine", every=2, rows=2)
    scanned, plain = trained(tmp_path, [callback]), trained(tmp_path, [])
    assert scanned.training == plain.training
    for name, weight in plain.state_dict().items():
        assert torch.equal(scanned.state_dict()[name], weight)
    over = interp.trajectories(tmp_path / "out")
    assert sorted(set(over.table["step"])) == [0, 2, 4]
    assert set(over.table["model"]) == {"mine"}
    last = interp.load_model(plain, words_tokenizer())
    assert set(over.last("mine")["digest"]) == {last.digest}
    assert over.last("mine")["induction"].tolist() == (
        interp.scan_heads(last, rows=2).to_frame()["induction"].tolist()
    )
    assert len(callback.seconds) == 3
