"""The losses and their gradients equal those of TRL, whose loss function is called with given log-probabilities."""

from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch

from danalab.post.policy_losses import OBJECTIVES, Clip, Tokens, kl_penalty

MAX_TOKENS = 12

SAME = {
    "dapo": {"loss_type": "dapo"},
    "dr_grpo": {"loss_type": "dr_grpo"},
    "gspo": {"loss_type": "grpo", "importance_sampling_level": "sequence"},
    "cispo": {"loss_type": "cispo"},
}


def loss_of_trl(log_probs, inputs, clip, beta, **settings):
    trl = pytest.importorskip("trl")
    unused = {"use_bias_correction_kl": False, "delta": None, "steps_per_generation": 1}
    trainer = SimpleNamespace(
        **{
            "importance_sampling_level": "token", "epsilon_low": clip.low, "beta": beta, "use_vllm": False,
            "epsilon_high": 1 + clip.high if settings["loss_type"] == "cispo" else clip.high,
            "max_completion_length": MAX_TOKENS, "top_entropy_quantile": 1.0, "off_policy_mask_threshold": None,
            "aux_loss_enabled": False, "_entropy_bonus_enabled": False, "current_gradient_accumulation_steps": 1,
            "args": SimpleNamespace(**unused), "model": SimpleNamespace(training=True),
            "accelerator": SimpleNamespace(gather=lambda x: x, reduce=lambda x, **_: x, num_processes=1),
            "_metrics": defaultdict(lambda: defaultdict(list)),
            "_get_per_token_logps_and_entropies": lambda *_, **__: (log_probs, torch.zeros_like(log_probs), None),
            **settings,
        }
    )  # fmt: skip
    return trl.GRPOTrainer._compute_loss(trainer, None, inputs)


@pytest.mark.slow
@pytest.mark.parametrize("beta", [0.0, 0.3])
@pytest.mark.parametrize("name", SAME)
def test_losses_are_those_of_trl_with_groups_without_signal(name, beta):
    """Answers 4 and 5 are a group of equal rewards. Without a penalty they are left out of our sum, not of TRL's."""
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    log_probs = (-draw(6, 9).abs()).requires_grad_()
    old, reference = (log_probs.detach() + 0.4 * draw(6, 9) for _ in range(2))
    advantages = draw(6) * torch.tensor([1, 1, 1, 1, 0, 0])
    lengths = torch.tensor([9, 1, 4, 7, 9, 2])
    mask = torch.arange(9) < lengths[:, None]
    objective = OBJECTIVES.get(name)
    clip = Clip(0.1, 0.2) if name == "gspo" else objective.clip
    kept = mask & (advantages != 0)[:, None] if beta == 0 else mask
    tokens = Tokens(
        log_probs, old, advantages[:, None].expand(6, 9), kept, torch.zeros(6, 9, dtype=torch.int64)
    )
    total = objective.total(float(kept.sum()), 6.0, MAX_TOKENS)
    ours = objective(tokens, total, clip)[0]
    ours = ours + beta * objective.reduce(kl_penalty(log_probs, reference, kept), tokens, total)
    (gradient,) = torch.autograd.grad(ours, log_probs)
    inputs = {
        "prompt_ids": torch.zeros(6, 1, dtype=torch.int64), "prompt_mask": torch.ones(6, 1),
        "completion_ids": torch.zeros(6, 9, dtype=torch.int64), "completion_mask": mask.double(),
        "advantages": advantages, "old_per_token_logps": old, "ref_per_token_logps": reference,
        "num_items_in_batch": kept.sum(),
    }  # fmt: skip
    theirs = loss_of_trl(log_probs, inputs, clip, beta, **SAME[name])
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradient, torch.autograd.grad(theirs, log_probs)[0], rtol=1e-10, atol=1e-12)
