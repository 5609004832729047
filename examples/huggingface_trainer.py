"""ADana in the Hugging Face Trainer, on a tiny random GPT-2; nothing is downloaded.

    python examples/huggingface_trainer.py

Pass an optimizer that is already built. The alternative, `optimizer_cls_and_kwargs`, makes its own parameter groups
and sets their weight decay to `TrainingArguments.weight_decay` (default 0), which overwrites the decay from omega and
horizon.
"""

from __future__ import annotations

import inspect
import os
import tempfile

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "TRANSFORMERS_VERBOSITY": "error"}

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

from danalab.optim import build_optimizer, get_schedule, lr_scheduler, warmup_steps

LENGTH, STEPS = 32, 60


class Windows(Dataset):
    """Windows of Python source, as bytes."""

    def __init__(self):
        self.text = torch.tensor(list(inspect.getsource(torch.nn.Module).encode()))

    def __len__(self) -> int:
        return len(self.text) // LENGTH

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        window = self.text[index * LENGTH : (index + 1) * LENGTH]
        return {"input_ids": window, "labels": window}


def trainer(folder: str, steps: int = STEPS, opt: str = "adana", scheduler: bool = True) -> Trainer:
    """A Trainer that stops after `steps` of the run's STEPS."""
    set_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=256, n_positions=LENGTH, n_embd=64, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
        )
    )
    optimizer = build_optimizer(opt, model, lr=3e-3, omega=4.0, horizon=STEPS)
    # With None the Trainer uses its own schedule (lr_scheduler_type, warmup_steps), which works as well.
    schedule = get_schedule("cos_inf", STEPS, warmup=warmup_steps(STEPS))
    own = lr_scheduler(optimizer, schedule) if scheduler else None
    arguments = TrainingArguments(
        output_dir=folder,
        max_steps=steps,
        per_device_train_batch_size=16,
        max_grad_norm=0.5,
        logging_steps=10,
        save_steps=20,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        seed=0,
    )
    return Trainer(model=model, args=arguments, train_dataset=Windows(), optimizers=(optimizer, own))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        trainer(folder).train()
        print("resumed from the checkpoint at step 40:")
        trainer(folder).train(resume_from_checkpoint=f"{folder}/checkpoint-40")
