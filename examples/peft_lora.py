"""LoRA with PEFT and ADana: fine-tune a chat model through low-rank matrices; nothing is downloaded.

    python examples/peft_lora.py            a tiny random Llama
    python examples/peft_lora.py FOLDER     a model in Hugging Face format, such as `danalab export` writes

The loss covers the assistant's words only, as in `danalab sft`.
"""

from __future__ import annotations

import os
import random
import sys

os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from danalab.data.tokenizers import load_tokenizer
from danalab.optim import build_optimizer, get_schedule, lr_scheduler, warmup_steps

STEPS, BATCH, IGNORED = 60, 16, -100


def open_model(folder: str | None):
    """A model, and the function that encodes a question and its answer: ids of both."""
    if folder is None:
        sizes = {
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
        }
        model = LlamaForCausalLM(LlamaConfig(vocab_size=257, initializer_range=0.1, **sizes))
        characters = load_tokenizer("bytes")
        return model, lambda question, answer: (
            characters.encode(f"{question}\n"),
            characters.encode(f"{answer}\n"),
        )
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def encode(question: str, answer: str) -> tuple[list[int], list[int]]:
        asked = [{"role": "user", "content": question}]
        prompt = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_dict=True)[
            "input_ids"
        ]
        return prompt, [*tokenizer.encode(answer, add_special_tokens=False), tokenizer.eos_token_id]

    return AutoModelForCausalLM.from_pretrained(folder), encode


def batch(encode, draw: random.Random) -> dict[str, torch.Tensor]:
    """Questions with their answers; labels are the answers."""
    pairs = []
    for _ in range(BATCH):
        a, b = draw.randint(0, 9), draw.randint(0, 9)
        pairs.append(encode(f"Which is larger, {a} or {b}?", f"{max(a, b)} is."))
    width = max(len(prompt) + len(answer) for prompt, answer in pairs)
    ids, labels = torch.zeros(BATCH, width, dtype=torch.long), torch.full((BATCH, width), IGNORED)
    for row, (prompt, answer) in enumerate(pairs):
        size = len(prompt) + len(answer)
        ids[row, :size] = torch.tensor(prompt + answer)
        labels[row, len(prompt) : size] = torch.tensor(answer)
    return {"input_ids": ids, "labels": labels}


if __name__ == "__main__":
    torch.manual_seed(0)
    base, encode = open_model(sys.argv[1] if len(sys.argv) > 1 else None)
    model = get_peft_model(
        base, LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
    )
    optimizer = build_optimizer("adana", model, lr=1e-2, omega=4.0, horizon=STEPS)
    schedule = lr_scheduler(optimizer, get_schedule("cos_inf", STEPS, warmup=warmup_steps(STEPS)))
    trained = sum(each.numel() for each in model.parameters() if each.requires_grad)
    print(f"{trained:,} of {sum(each.numel() for each in model.parameters()):,} parameters train")
    draw = random.Random(0)
    for step in range(1, STEPS + 1):
        loss = model(**batch(encode, draw)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step == 1 or step % 20 == 0:
            print(f"step {step}  loss {loss.item():.3f}")
    model.merge_and_unload()  # the base model with the matrices added: save_pretrained writes it
