"""ADana in TRL's SFTTrainer: a tiny random Llama learns to add; nothing is downloaded.

    python examples/trl_sft.py

TRL's trainers of preferences and rewards take an optimizer in the same way: they are Trainers of transformers.
"""

from __future__ import annotations

import os
import tempfile

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "TRANSFORMERS_VERBOSITY": "error"}

from datasets import Dataset, disable_progress_bars
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed
from trl import SFTConfig, SFTTrainer

from danalab.optim import build_optimizer, get_schedule, lr_scheduler, warmup_steps

STEPS = 60


def tokenizer() -> PreTrainedTokenizerFast:
    """Bytes, and an end of text."""
    words = {word: i for i, word in enumerate(["<end>", *sorted(pre_tokenizers.ByteLevel.alphabet())])}
    bytes_ = Tokenizer(models.BPE(vocab=words, merges=[]))
    bytes_.pre_tokenizer, bytes_.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel(),
    )
    return PreTrainedTokenizerFast(tokenizer_object=bytes_, eos_token="<end>", pad_token="<end>")


def trainer(folder: str, steps: int = STEPS) -> SFTTrainer:
    """A trainer that stops after `steps` of the run's STEPS."""
    set_seed(0)
    disable_progress_bars()
    sums = [{"prompt": f"{a} + {b} = ", "completion": str(a + b)} for a in range(20) for b in range(20)]
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=257, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
            bos_token_id=0, eos_token_id=0, pad_token_id=0,
        )
    )  # fmt: skip
    optimizer = build_optimizer("adana", model, lr=3e-3, omega=4.0, horizon=STEPS)
    schedule = lr_scheduler(optimizer, get_schedule("cos_inf", STEPS, warmup=warmup_steps(STEPS)))
    arguments = SFTConfig(
        output_dir=folder,
        max_steps=steps,
        per_device_train_batch_size=16,
        max_grad_norm=0.5,
        logging_steps=10,
        save_steps=20,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        seed=0,
    )
    return SFTTrainer(
        model=model,
        args=arguments,
        train_dataset=Dataset.from_list(sums),
        processing_class=tokenizer(),
        optimizers=(optimizer, schedule),
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        trainer(folder).train()
        print("resumed from the checkpoint at step 40:")
        trainer(folder).train(resume_from_checkpoint=f"{folder}/checkpoint-40")
