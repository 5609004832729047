"""Learning rates of runs that are smaller than those of the published laws: small models and small batches.

Measured on two CPU cores (notes/lab-notebook.md, "Rates of small runs"); between these sizes and the published ones it
is an interpolation.
"""

from typing import Any

from danalab.scaling.learning_rate import SEQUENCE, PeakRate, batch_factor, fitted_row, lr_law

_LEAST_PARAMS = {("qwen3", "adamw"): 25_165_824}
"""Size below which the law is held constant: qwen3's AdamW law gives lr 0.14 at 0.8 M parameters; 0.004 to 0.02 works
best."""


def small_run_rate(arch: str, opt: str, non_emb_params: float, kappa: float, tokens_per_step: int) -> PeakRate:
    """The fitted law's rate for size P of the canonical `opt`, lower for small batches and held for small models.

    Batches below 65,536 tokens have (tokens / 65,536)^(1/3) of the rate, where that was measured. UserError: unknown
    optimizer.
    """
    law, source = lr_law(arch, opt, kappa, tokens_per_step / SEQUENCE)
    if arch == "resonance" or law.d == 0:
        return PeakRate(law(non_emb_params), source, law.batch)
    table, row = fitted_row(arch, opt)
    least = _LEAST_PARAMS.get((table, row), 0)
    if non_emb_params < least:
        source += f", held below {least / 1e6:.0f}M parameters"
    factor = batch_factor(arch, opt, tokens_per_step)
    if factor != 1:
        source += f", times {factor:.2f} for {tokens_per_step:,} tokens a step"
    return PeakRate(law(max(non_emb_params, least)) * factor, source, law.batch, factor)


def slow_momentum(steps: int, delta: float = 8.0, kappa: float = 0.85) -> dict[str, Any]:
    """AdEMAMix's slow momentum by the ladder's rule, the window and weight of ADana's at the end of the run: settings
    `betas`, `alpha`, `alpha_warmup` and `beta3_warmup` of a run of `steps` steps.

    Its window is steps / delta, its weight steps^(1 - kappa); both grow over the whole run. With fewer steps than
    `delta` it has no effect.
    """
    betas = (0.9, 0.999, max(0.0, 1 - delta / steps))
    return {"betas": betas, "alpha": steps ** (1 - kappa), "alpha_warmup": steps, "beta3_warmup": steps}
