"""ADana by the Hugging Face Trainer's `optimizer_cls_and_kwargs` (transformers 5), on a tiny random GPT-2.

    python examples/huggingface_factory.py

What is no optimizer class is called without arguments and returns what builds the optimizer from the whole model, so
that embeddings, gains and biases are groups without weight decay. A class would get the Trainer's own groups, in which
`TrainingArguments.weight_decay` replaces the decay from omega and horizon. The schedule here is the Trainer's.
"""

from __future__ import annotations

import functools
import inspect
import os
import tempfile

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "TRANSFORMERS_VERBOSITY": "error"}

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

from danalab.optim import build_optimizer, warmup_steps

LENGTH, STEPS = 32, 60


def trainer(folder: str, steps: int = STEPS, opt: str = "adana") -> Trainer:
    """A Trainer that stops after `steps` of the run's STEPS."""
    set_seed(0)
    text = torch.tensor(list(inspect.getsource(torch.nn.Module).encode()))
    windows = [{"input_ids": window, "labels": window} for window in text.split(LENGTH)[:-1]]
    config = GPT2Config(
        vocab_size=256, n_positions=LENGTH, n_embd=64, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    arguments = TrainingArguments(
        output_dir=folder,
        max_steps=steps,
        per_device_train_batch_size=16,
        max_grad_norm=0.5,
        lr_scheduler_type="cosine",
        warmup_steps=warmup_steps(STEPS),
        logging_steps=10,
        save_steps=20,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    return Trainer(
        model=GPT2LMHeadModel(config),
        args=arguments,
        train_dataset=windows,
        optimizer_cls_and_kwargs=(
            lambda: functools.partial(build_optimizer, opt),
            {"lr": 3e-3, "omega": 4.0, "horizon": STEPS},
        ),
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        trainer(folder).train()
