"""The README's snippet, `build_optimizer`, accelerate, Lightning and the Hugging Face Trainer make the same steps.

What docs/decay-law.md measures with a plain loop so holds in each of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from danalab.optim import ADana, build_optimizer, get_schedule, lr_scheduler, warmup_steps

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "DO_NOT_TRACK": "1"}

STEPS, BATCH, VOCABULARY = 30, 8, 16
SETTINGS: dict[str, Any] = {"lr": 1e-2, "omega": 4.0, "horizon": STEPS}


class Model(nn.Module):
    """The next of 16 tokens after four, with an embedding, a gain, a bias and matrices."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 8)
        self.layers = nn.Sequential(nn.Flatten(1), nn.Linear(32, 24), nn.LayerNorm(24), nn.GELU())
        self.head = nn.Linear(24, VOCABULARY)

    def forward(self, tokens: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": F.cross_entropy(self.head(self.layers(self.embed(tokens))), labels)}


class Rows(Dataset):
    """`STEPS` batches in a fixed order."""

    def __init__(self):
        draw = torch.Generator().manual_seed(1)
        self.tokens = torch.randint(VOCABULARY, (STEPS * BATCH, 4), generator=draw)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"tokens": self.tokens[index], "labels": self.tokens[index].sum() % VOCABULARY}


def batches() -> DataLoader:
    return DataLoader(Rows(), batch_size=BATCH)


def scheduled(optimizer: torch.optim.Optimizer) -> Any:
    return lr_scheduler(optimizer, get_schedule("cos_inf", STEPS, warmup_steps(STEPS)))


def plain(build: Callable[[nn.Module], torch.optim.Optimizer], model: Model) -> None:
    optimizer = build(model)
    scheduler = scheduled(optimizer)
    for batch in batches():
        model(**batch)["loss"].backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()


def accelerate(model: Model) -> None:
    accelerator = pytest.importorskip("accelerate").Accelerator(cpu=True)
    optimizer = ADana(model, **SETTINGS)
    scheduler = scheduled(optimizer)  # counts optimizer steps itself: not prepared
    prepared, wrapped, loader = accelerator.prepare(model, optimizer, batches())
    for batch in loader:
        accelerator.backward(prepared(**batch)["loss"])
        accelerator.clip_grad_norm_(prepared.parameters(), 1.0)
        wrapped.step()
        scheduler.step()
        wrapped.zero_grad()


def lightning(model: Model) -> None:
    pl = pytest.importorskip("lightning")

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = model

        def training_step(self, batch: dict[str, Tensor], index: int) -> Tensor:
            return self.model(**batch)["loss"]

        def configure_optimizers(self) -> Any:
            optimizer = build_optimizer("adana", self, **SETTINGS)
            return {
                "optimizer": optimizer,
                "lr_scheduler": {"scheduler": scheduled(optimizer), "interval": "step"},
            }

    quiet = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
    )
    trainer = pl.Trainer(max_steps=STEPS, accelerator="cpu", gradient_clip_val=1.0, **quiet)
    trainer.fit(Module(), batches())


def hugging_face(model: Model, folder: str) -> None:
    transformers = pytest.importorskip("transformers")
    optimizer = ADana(model, **SETTINGS)
    arguments = transformers.TrainingArguments(
        folder, max_steps=STEPS, per_device_train_batch_size=BATCH, report_to="none", disable_tqdm=True, use_cpu=True,
        save_strategy="no", logging_strategy="no",
    )  # fmt: skip

    class InOrder(transformers.Trainer):
        def get_train_dataloader(self) -> DataLoader:
            return self.accelerator.prepare(batches())

    trainer = InOrder(
        model=model, args=arguments, train_dataset=Rows(), optimizers=(optimizer, scheduled(optimizer))
    )
    trainer.train()


def trained(train: Callable[[Model], None]) -> dict[str, Tensor]:
    torch.manual_seed(0)
    model = Model()
    train(model)
    return {name: p.detach().clone() for name, p in model.named_parameters()}


@pytest.fixture(scope="module")
def snippet() -> dict[str, Tensor]:
    """The weights after the README's first snippet in a plain loop."""
    return trained(lambda model: plain(lambda net: ADana(net, **SETTINGS), model))


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("train", "tolerance"),
    [
        (lambda model, folder: plain(lambda net: build_optimizer("adana", net, **SETTINGS), model), 0),
        (lambda model, folder: accelerate(model), 0),
        # It adds up the gradient's norm in the order of the groups: the last bit differs.
        (lambda model, folder: lightning(model), 1e-5),
        (hugging_face, 0),
    ],
    ids=["build_optimizer", "accelerate", "lightning", "hugging face"],
)
def test_other_trainers_make_the_steps_of_the_first_snippet(snippet, train, tolerance, tmp_path):
    found = trained(lambda model: train(model, str(tmp_path)))
    for name, p in snippet.items():
        torch.testing.assert_close(found[name], p, rtol=tolerance, atol=tolerance, msg=name)


def test_the_first_snippet_does_not_decay_embeddings_gains_and_biases():
    decayed = [
        group["param_names"] for group in ADana(Model(), **SETTINGS).param_groups if group["weight_decay"]
    ]
    assert decayed == [["layers.1.weight", "head.weight"]]
