"""The optimizers: one row of facts for each, read by constructors by name, the command line, scaling, figures and docs.

Needs no torch; `danalab.optim.registry` makes an optimizer of a row. A row in `OPTIMIZERS` is all that the package must
know of an optimizer beside its class or rule.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from danalab.optim import products
from danalab.plugins import load_address
from danalab.registry import Registry


@dataclass(frozen=True)
class Relative:
    """A learning rate by another optimizer's law; factors are relative to AdamW's at betas (0.9, 0.999)."""

    of: str
    factor: float
    source: str
    """Why this factor."""


@dataclass(frozen=True)
class Usual:
    """A common learning rate for all sizes."""

    lr: float
    source: str


@dataclass(frozen=True, kw_only=True)
class Row:
    """What is known of an optimizer before it is imported."""

    name: str
    summary: str
    reference: str
    path: str = ""
    """module:NAME of its class, below `danalab.optim` or in a library; of a wrapper; or of a rule in
    `danalab.optim.rules`, of which a class is made."""
    inner: str = ""
    """The optimizer inside a wrapper."""
    decay: Literal["independent", "coupled", "none"] = "coupled"
    """Whether weight_decay is multiplied by the schedule factor alone, or by the learning rate."""
    decay_falls: bool = False
    """Coupled weight decay falls over time, too, by default with the run's length as `wd_ts`."""
    aliases: tuple[str, ...] = ()
    log_time: bool = False
    """Depends on the step count; has `coefficients()`, `collect_stats()` and `update_rms()`."""
    elementwise: bool = True
    """Each coordinate is updated independently, so that any sharding of the parameters is exact."""
    per_parameter: bool = True
    """Each parameter is updated independently; False: a statistic over all of them couples them."""
    sums_over_ranks: bool = False
    """These statistics are sums over coordinates, and its class completes them over ranks (`sum_over`)."""
    adam_like: bool = False
    """The size of a step does not depend on that of gradients or weights, as Adam's: the rules of
    `danalab.models.parametrization` hold."""
    in_parts: bool = False
    """A step may be made in several calls, each with the gradients of other parameters: it counts no steps itself."""
    one_rate: bool = False
    """All groups are updated at the learning rate of the first one."""
    by_kind: bool = False
    """Matrices have another rule than other parameters: a model's groups are its kinds."""
    train_eval: bool = False
    """Its `train()` and `eval()` must be called around evaluation."""
    own_weights: bool = False
    """Keeps slow weights besides the model's, so that nothing else may set the model's."""
    clocks: tuple[str, ...] = ()
    """Keys of parameter groups that are state, not settings, present from construction on."""
    closure: bool = False
    """`step` needs a closure."""
    hessian: bool = False
    """Needs Hessian estimates; has `hessian_is_due()` and `update_hessian()`."""
    extra: str | None = None
    """Extra that must be installed."""
    advice: str = ""
    """One sentence of advice for training with it."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Defaults that differ from those of its class, or all of a library's: a value, or (value, help)."""
    texts: Mapping[str, str] = field(default_factory=dict)
    """Help of settings that `danalab.optim.settings.HELP` does not fit."""
    state_words: float = 2.0
    """Float32 values per parameter in the state."""
    flops: products.Rule | None = products.none
    """FLOPs of its own matrix products; None: not known, as of an optimizer outside the package."""
    rate: Relative | Usual | None = None
    """The learning rate to begin with, where no law is fitted."""
    rates: tuple[float, float, float] | None = None
    """Learning rates to try on a small model, measured (bench/first_line.py)."""
    estimates: str = ""
    """The optimizer whose learning rate is approximated by this one's times its own estimate of a distance."""
    gradient_sum: float = 1.0
    """Weight of a gradient in the sum through which weight decay acts, at the default momentum."""
    horizon: tuple[float, float, float] | None = None
    """Exponent of the best learning rate over the horizon f, and its 95% interval: `danalab.scaling.learning_rate`."""
    color: str = ""
    marker: str = "o"

    def plain_defaults(self) -> dict[str, tuple[Any, str]]:
        """Setting of `defaults` -> (default, help); "" where it has none of its own."""
        return {
            name: value if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], str) else (value, "")
            for name, value in self.defaults.items()
        }

    @property
    def class_name(self) -> str:
        """Name of the class that is made of a rule."""
        return self.name.title().replace("-", "")


def is_address(name: str) -> bool:
    """Whether an optimizer is named by where it is, FILE.py:NAME or module:NAME, and not by a row of the catalogue."""
    return ":" in name


def short_name(name: str) -> str:
    """An optimizer's name in that of a folder: `mine.py-Mine` of ./mine.py:Mine."""
    return Path(name).name.replace(":", "-")


def own_row(name: str, build: Any) -> Row:
    """Of an optimizer outside the package: a class made from one of ours has its weight decay and learning rate."""
    ours = {each.replace("-", ""): OPTIMIZERS.get(each) for each in OPTIMIZERS}
    bases = [base for base in getattr(build, "__mro__", ()) if base.__module__.startswith("danalab.optim.")]
    of = next((ours[base.__name__.lower()] for base in bases if base.__name__.lower() in ours), None)
    facts = {name: getattr(of, name) for name in ("decay", "decay_falls", "log_time")} if of else {}
    facts["flops"] = of.flops if of else None
    facts["rate"] = Relative(of.name, 1.0, "the class that it is made from") if of else None
    return Row(name=name, summary="an optimizer of your own", reference=name, elementwise=False, **facts)


class _Catalogue(Registry[Row]):
    """The rows; an address is its own name and has a row of defaults."""

    def canonical(self, name: str) -> str:
        return name if is_address(name) else super().canonical(name)

    def get(self, name: str) -> Row:
        return own_row(name, load_address(name)) if is_address(name) else super().get(name)


OPTIMIZERS: Registry[Row] = _Catalogue("optimizer")


def _add(name: str, path: str, summary: str, reference: str = "arXiv 2602.05298", **facts: Any) -> None:
    row = Row(name=name, path=path, summary=summary, reference=reference, **facts)
    OPTIMIZERS.add(name, row, *row.aliases)


_SAME_STEP = Relative("adamw", 1.0, "its update has AdamW's size")
_SIGN = Relative("adamw", 0.2, "a sign update, as Lion's")
_OF_THE_INNER = Relative("adamw", 1.0, "its inner optimizer")

# fmt: off
# ---- torch's ----
_torch = partial(_add, in_parts=True)
_torch("adamw", "torch.optim:AdamW", "Adam with decoupled weight decay (torch's)",
       "Loshchilov and Hutter 2019, arXiv 1711.05101", defaults={"weight_decay": 0.0}, adam_like=True, color="#1f77b4",
       horizon=(-0.31, -0.61, -0.01), rates=(4e-3, 8e-3, 1.6e-2))
_torch("sgd", "torch.optim:SGD", "stochastic gradient descent with momentum (torch's)",
       "Robbins and Monro 1951; Polyak 1964", defaults={"momentum": 0.9}, state_words=1.0, color="#bcbd22",
       gradient_sum=10.0, rate=Usual(0.3, "for momentum 0.9 and gradients clipped to norm 0.5; by a short sweep"),
       texts={"momentum": "rate of the momentum, a sum of gradients",
              "dampening": "a new gradient is weighted by 1 - dampening",
              "nesterov": "look ahead by one step of momentum",
              "weight_decay": "weight decay, added to the gradient: also part of the momentum"})
_torch("adafactor", "torch.optim:Adafactor",
       "Adam with a factored second moment and steps relative to the weights (torch's)",
       "Shazeer and Stern 2018, arXiv 1804.04235", flops=products.adafactor, elementwise=False, state_words=0.0,
       rate=Usual(0.03, "relative to the weights; arXiv 1804.04235 has 0.01, a short sweep 0.03"),
       advice="lr is relative: each tensor's step is lr times its root mean square",
       texts={"beta2_decay": "the second moment's rate is 1 - t^this",
              "eps": "added to squared gradients (none = of the dtype); least root mean square of weights",
              "d": "largest root mean square of an update"})
_torch("radam", "torch.optim:RAdam", "AdamW whose early steps are rectified instead of a warm-up (torch's)",
       "Liu et al. 2019, arXiv 1908.03265", defaults={"decoupled_weight_decay": True}, rate=_SAME_STEP,
       adam_like=True)
_torch("nadam", "torch.optim:NAdam", "AdamW with Nesterov momentum (torch's)", "Dozat 2016", rate=_SAME_STEP,
       adam_like=True,
       defaults={"decoupled_weight_decay": True},
       texts={"momentum_decay": "how fast the momentum's rate grows to the first of betas"})

# ---- element-wise ----
_decaying = partial(_add, decay="independent")
_decaying_adam = partial(_decaying, adam_like=True)
_log_time = partial(_decaying, log_time=True)
_log_time_adam = partial(_log_time, adam_like=True)
_AVERAGES = {"betas": "rates of the fast momentum, the second moment and the slow momentum"}
_ENOKI = "ratio of their fitted laws on enoki, 7M to 600M parameters"
_decaying_adam("adamw-decaying-wd", "optimizers.elementwise:AdamWDecayingWD",
               "AdamW with independent, decaying weight decay", color="#00CED1", marker="s",
               rate=Relative("adamw", 1.0, "the same update"))
_add("ademamix", "optimizers.elementwise:AdEMAMix", "Adam with a second, slow momentum mixed in",
     "Pagliardini, Ablin and Grangier 2024, arXiv 2409.03137", texts=_AVERAGES, state_words=3.0,
     adam_like=True, rate=Relative("adamw", 0.43, _ENOKI), color="#9467bd", marker="X")
_decaying_adam("ademamix-decaying-wd", "optimizers.elementwise:AdEMAMixDecayingWD",
               "AdEMAMix with independent, decaying weight decay", "arXiv 2409.03137, 2602.05298", texts=_AVERAGES,
               state_words=3.0, rate=Relative("adamw", 0.47, _ENOKI), color="#4B0082")
_log_time_adam("adana", "optimizers.elementwise:ADana", "AdamW in logarithmic time, with damped long momentum",
               color="#228B22", marker="D", horizon=(-0.18, -0.36, 0.01), rates=(1.4e-3, 2.8e-3, 5.6e-3))
_log_time_adam("dana-mk4", "optimizers.elementwise:DanaMK4", "ADana with its momentum's signal-to-noise ratio clipped",
               color="#CD853F", marker="v")
_log_time_adam("dana-star", "optimizers.elementwise:DanaStar", "ADana with an effective time for each coordinate",
               state_words=3.0, rate=Relative("dana-star-mk4", 1.0, "the same update except for the clip"),
               color="#7f7f7f", marker="<")
_log_time_adam("dana-star-mk4", "optimizers.elementwise:DanaStarMK4",
               "ADana with both: an effective time for each coordinate, and the clip", state_words=3.0,
               color="#d62728", marker="^", horizon=(-0.02, -0.16, 0.13))
_log_time("dana", "rules.dana:DANA", "ADana without normalisation, for linear problems",
          "arXiv 2602.05298, 2505.16098", state_words=1.0, rate=Usual(0.5, "for gradients clipped to norm 0.5"),
          color="#006d5b")
_log_time_adam("sign-dana", "rules.dana:SIGN_DANA", "ADana with signs instead of its normalisation",
               "arXiv 2602.05298, 1802.04434", state_words=1.0, color="#9acd32",
               rate=Relative("adana", 0.1, "signs are larger than normalised updates"))
_log_time_adam("auto-dana", "optimizers.elementwise:AutoDana",
               "ADana that chooses kappa by its momentum's signal-to-noise ratio", color="#556B2F",
               rate=Relative("adana", 1.0, "the same update at its chosen kappa"))

# ---- matrices by a rule of their own ----
_matrix = partial(_add, elementwise=False, by_kind=True)
_OF_HEADS = {"weight_decay": "weight decay of heads; matrices keep their norm"}
_OF_GRADIENTS = {"momentum": "rate of the gradients' average"}
_matrix("muon", "optimizers.matrix:Muon", "orthogonalised momentum for matrices, AdamW for the rest",
        "K. Jordan et al. 2024", flops=products.orthogonalised, state_words=1.3,
        rate=Usual(0.02, "K. Jordan et al. 2024"), color="#ff7f0e", marker="p", horizon=(-0.36, -0.74, 0.02))
_matrix("d-muon", "optimizers.matrix:DMuon", "Muon with AdamW's update size: one learning rate for all",
        "arXiv 2502.16982", flops=products.orthogonalised, state_words=1.3, color="#8B4513", marker="h")
_matrix("dana-muon", "optimizers.matrix:DanaMuon",
        "orthogonalised log-time momentum for matrices, Dana-Star-MK4 for the rest", "arXiv 2502.16982, 2602.05298",
        flops=products.orthogonalised, state_words=1.5,
        rate=Relative("d-muon", 2.0, "its best rates at 58k and 105k parameters are twice that"),
        color="#c2187a", marker="*", decay_falls=True,
        texts={"aux_lr_factor": "learning rate of parameters that are not matrices, in units of lr; none = 0.0625 for"
               " vectors and 0.25 for others"}, horizon=(-0.21, -0.41, 0.0), rates=(0.016, 0.032, 0.064))
_matrix("manau", "optimizers.matrix:Manau", "D-Muon for matrices, Dana-Star-MK4 for the rest",
        "arXiv 2502.16982, 2602.05298", flops=products.orthogonalised, state_words=1.5, color="#e377c2", marker="P",
        rate=Relative("d-muon", 1.0, "the same update of matrices"), decay_falls=True)
_add("sophia", "optimizers.sophia:SophiaG",
     "momentum divided by an estimate of the curvature, clipped (Gauss-Newton-Bartlett)",
     "Liu et al. 2023, arXiv 2305.14342", aliases=("sophiag",), hessian=True,
     texts={"betas": "rates of the momentum and the curvature"},
     rate=Relative("adamw", 1.0, "its authors advise AdamW's"),
     advice="every hessian_interval steps costs one more pass, over one micro-batch with sampled labels")
_matrix("muon-h", "optimizers.matrix:MuonH", "Muon with matrices of constant norm (Hyperball), AdamW for the rest",
        "Wen et al. 2026, arXiv 2606.16899", aliases=("hyperball",), texts=_OF_HEADS,
        flops=products.orthogonalised, state_words=1.3,
        rate=Usual(0.018, "arXiv 2606.16899"), color="#c04000",
        advice="matrices keep the norm that they start with, so use --init scaled-gpt. It is meant for "
               "--scheduler linear")
_matrix("adam-h", "optimizers.matrix:AdamH", "Adam with matrices of constant norm (Hyperball), AdamW for the rest",
        "Wen et al. 2026, arXiv 2606.16899", texts=_OF_HEADS, rate=Usual(0.018, "arXiv 2606.16899"), color="#4682b4",
        advice="meant for 250 steps of warm-up and a rate that falls linearly")
_matrix("dion2", "optimizers.matrix:Dion2", "Muon on the rows with the largest momentum only, AdamW for the rest",
        "Ahn, Amsel and Langford 2025, arXiv 2512.16928", flops=products.dion2, state_words=1.3,
        texts={"momentum": "factor of the momentum that a step has applied"},
        rate=Usual(0.02, "as Muon's; arXiv 2512.16928"))
_matrix("scion", "optimizers.matrix:Scion", "spectral steps for matrices, sign steps for the rest, within balls",
        "Pethick et al. 2025, arXiv 2502.07529", texts=_OF_GRADIENTS, flops=products.orthogonalised, state_words=1.0,
        rate=Usual(3.6e-4, "arXiv 2502.07529, at radii 50 and 3000"),
        advice="weight_decay 1 is its constrained form")
_matrix("kl-soap", "optimizers.matrix:KLSOAP",
        "SOAP with Kronecker factors that minimise a KL divergence, AdamW for the rest",
        "Lin et al. 2025, arXiv 2509.03378",
        flops=products.kl_soap, state_words=7.2,
        rate=Relative("adamw", 1.0, "as SOAP's"), color="#008b8b",
        advice="its first step only sets up the preconditioner")
_matrix("psgd-kron", "optimizers.matrix:Kron",
        "momentum preconditioned by fitted triangular Kronecker factors, AdamW for the rest",
        "Li 2015, arXiv 1512.04202; 2402.04553", texts=_OF_GRADIENTS,
        flops=products.kron, state_words=4.0, color="#6b4c9a",
        rate=Relative("adamw", 0.3, "its authors advise a third to a quarter of Adam's"))
_matrix("adam-mini", "optimizers.matrix:AdamMini",
        "Adam with one second moment for each row of a matrix, AdamW for the rest",
        "Zhang et al. 2024, arXiv 2406.16793", state_words=1.3,
        rate=Relative("adamw", 1.0, "arXiv 2406.16793: AdamW's rate"))

# ---- wrappers ----
_SODA = {"offset": "a larger one makes the first pulls to the initial weights, 1 / (k + offset), weaker"}
_add("snoo", "optimizers.wrappers:SNOO", "AdamW with an outer Nesterov step every k of its steps",
     "Kallusky et al. 2025, arXiv 2510.15830", inner="adamw", own_weights=True, state_words=4.0, rate=_OF_THE_INNER,
     adam_like=True, color="#ff9896")
_log_time_adam("snoo-dana", "optimizers.wrappers:SNOO",
               "Dana-Star-MK4 with an outer Nesterov step every k of its steps",
               "arXiv 2510.15830, 2602.05298", inner="dana-star-mk4", own_weights=True, state_words=5.0,
               color="#800000", rate=Relative("dana-star-mk4", 1.0, "its inner optimizer"))
_add("soda", "optimizers.wrappers:SODA",
     "AdamW whose weights are pulled to their initial values, ever weaker, instead of weight decay",
     "Pethick et al. 2026, arXiv 2605.11172", inner="adamw", decay="none", texts=_SODA, state_words=3.0,
     rate=_OF_THE_INNER, color="#5f9ea0")
_matrix("soda-muon", "optimizers.wrappers:SODA",
        "Muon whose weights are pulled to their initial values, ever weaker, instead of weight decay",
        "arXiv 2605.11172; K. Jordan et al. 2024", inner="muon", decay="none", texts=_SODA,
        flops=products.orthogonalised, state_words=2.3,
        rate=Usual(0.02, "as Muon's"))
_add("ema-nesterov", "optimizers.wrappers:EMANesterov",
     "AdamW with gradients ahead of the weights, along the average of their changes",
     "Yau et al. 2026, arXiv 2605.25395", inner="adamw", own_weights=True, state_words=4.0, rate=_OF_THE_INNER,
     texts={"gamma": "rate of the average of changes",
            "beta": "distance of the look ahead at the peak learning rate, in average changes"})

# ---- of the library pytorch-optimizer ----
# Defaults are the authors', or the usual ones for language models where the library's differ. All of them are passed to
# the library's class, so that the listed defaults are the ones that are used.
def _library(name: str, of: str, summary: str, reference: str, defaults: dict[str, Any], **facts: Any) -> None:
    common = {"weight_decay": 0.0, "maximize": False}
    _add(name, f"pytorch_optimizer:{of}", summary, reference, defaults=defaults | common, extra="baselines", **facts)


_FOREACH: dict[str, Any] = {"foreach": None}
_MEMORY: dict[str, Any] = {"age": None, "fresh": None}
_MOMENTS = {"betas": (0.9, 0.999), "eps": 1e-8, **_FOREACH}
_AVERAGE = {"r": (0.0, "later weights count as t^r in the average"),
            "weight_lr_power": (2.0, "weights count as (largest lr so far)^this in the average")}
_OF_THE_REST = {"by_kind": None, "aux_lr": None, "aux_lr_factor": 1.0,
                "aux_weight_decay": (None, "weight decay of parameters that are not matrices; none = 0")}
_AS_D_MUON = Relative("d-muon", 1.0, "the same size of update")
_schedule_free = partial(
    _library, train_eval=True, clocks=("train_mode", "weight_sum", "lr_max"),
    advice="needs no decay of the learning rate: --scheduler wsd --fract-decay 0 is warm-up alone")

_library("soap", "SOAP", "Adam in the eigenbasis of Shampoo's preconditioner", "Vyas et al. 2024, arXiv 2409.11321",
         {"betas": (0.95, 0.95), "eps": 1e-8,
          "shampoo_beta": (None, "rate of the preconditioner's averages; none = the second of betas"),
          "precondition_frequency": (10, "steps between new eigenbases"),
          "max_precondition_dim": (10_000, "longer sides of a matrix are not preconditioned"),
          "merge_dims": (False, "merge small dimensions of tensors of three and more"),
          "precondition_1d": (False, "precondition vectors too"), "correct_bias": (True, "Adam's bias correction"),
          "normalize_gradient": (False, "scale each tensor's update to root mean square 1")},
         flops=products.soap, elementwise=False,
         state_words=9.0,  # with both sides of each matrix, and their eigenvectors
         rate=Relative("adamw", 1.0, "arXiv 2409.11321 finds the same best rate for both"), color="#17becf", marker="*",
         horizon=(-0.38, -0.66, -0.10),
         advice="its first step only sets up the preconditioner")
_library("lion", "Lion", "sign of an interpolated momentum", "Chen et al. 2023, arXiv 2302.06675",
         {"betas": ((0.9, 0.99), "weight of the momentum in the update, and its own rate"), **_MEMORY, **_FOREACH},
         adam_like=True, state_words=1.0, color="#DAA520",
         rate=Relative("adamw", 0.2, "arXiv 2302.06675: 3 to 10 times smaller than AdamW's"))
_library("prodigy", "Prodigy", "Adam whose learning rate follows an estimate of the distance to the solution",
         "Mishchenko and Defazio 2023, arXiv 2306.06101",
         {**_MOMENTS, "beta3": (None, "rate of the distance's averages; none = root of the second of betas"),
          "d0": (1e-6, "first estimate of the distance"),
          "d_coef": (1.0, "factor of the estimate; the setting to tune instead of lr"),
          "bias_correction": (False, "Adam's bias correction"),
          "safeguard_warmup": (True, "keep the estimate sound while the learning rate warms up")},
         per_parameter=False, clocks=("step", "d", "d_max"), one_rate=True, sums_over_ranks=True, elementwise=False,
         state_words=4.0, estimates="adamw",
         rate=Usual(1.0, "arXiv 2306.06101: the estimated distance takes its place"),
         advice="lr 1 is meant: the schedule's factor multiplies the estimated distance; tune d_coef")
_library("adopt", "ADOPT",
         "Adam that normalises by the second moment before the new gradient: converges for any beta2",
         "Taniguchi et al. 2024, arXiv 2411.02853",
         {**_MOMENTS, "betas": (0.9, 0.9999), "eps": (1e-6, "least root of the second moment")}, rate=_SAME_STEP,
         adam_like=True,
         advice="its first step only sets up the second moment")
_library("mars", "MARS", "Adam on variance-reduced gradients, from differences of successive ones (approximate form)",
         "Yuan et al. 2024, arXiv 2411.10438",
         {**_MOMENTS, "betas": (0.95, 0.99), "gamma": (0.025, "strength of the correction by the previous gradient"),
          "mars_type": ("adamw", "what the corrected gradient goes into: adamw, lion or shampoo"),
          "optimize_1d": (False, "correct vectors too; otherwise they get plain AdamW"),
          "lr_1d": (None, "peak learning rate of vectors; none = lr"),
          "betas_1d": ((0.9, 0.95), "moments' rates for vectors"),
          "weight_decay_1d": (0.0, "weight decay of vectors"),
          "cautious": (False, "leave out coordinates where momentum and gradient disagree")},
         flops=products.mars, elementwise=False, state_words=3.0,
         rate=Relative("adamw", 3.0, "3e-3 where AdamW has 1e-3, as the reference's command line"))
_library("lamb", "Lamb", "Adam with each tensor's step in proportion to its norm, for large batches",
         "You et al. 2019, arXiv 1904.00962",
         {**_MOMENTS, "eps": 1e-6, "grad_averaging": (True, "weigh a new gradient by 1 - beta1"),
          "adam": (False, "leave the trust ratio at 1")}, elementwise=False,
         rate=Relative("adamw", 3.0,
                       "its trust ratio, norm of weights over norm of update, is small; by a short sweep"))
_schedule_free("sf-adamw", "ScheduleFreeAdamW", "AdamW at an average of its own iterates, without a schedule",
               "Defazio et al. 2024, arXiv 2405.15682",
               {**_MOMENTS, "betas": ((0.9, 0.999), "weight of the average in the training weights; second moment"),
                **_AVERAGE,
                "decoupling_c": (0, "scales the average's weights, as if for a window of c; 0 = plain average")},
               rate=Relative("adamw", 2.0, "arXiv 2405.15682: 1 to 10 times that of a schedule"), color="#7EC8E3")
_schedule_free("sf-sgd", "ScheduleFreeSGD", "SGD at an average of its own iterates, without a schedule",
               "Defazio et al. 2024, arXiv 2405.15682",
               {"momentum": (0.9, "weight of the average in the training weights"), **_AVERAGE, **_FOREACH},
               state_words=1.0, rate=Usual(3.0, "arXiv 2405.15682: 10 times and more that of SGD"))
_library("signsgd", "SignSGD", "sign of the gradient", "Bernstein et al. 2018, arXiv 1802.04434",
         {"momentum": (0.0, "rate of the gradient's average"), **_FOREACH}, state_words=0.0,
         rate=Relative("adamw", 0.2, "a sign update, as Lion's; a short sweep agrees"))
_library("signum", "SignSGD", "sign of the averaged gradient", "Bernstein et al. 2018, arXiv 1802.04434",
         {"momentum": (0.9, "rate of the gradient's average"), **_MEMORY, **_FOREACH}, adam_like=True, state_words=1.0,
         rate=_SIGN)
_library("adan", "Adan", "Adam with a Nesterov momentum estimated from differences of gradients",
         "Xie et al. 2022, arXiv 2208.06677",
         {**_MOMENTS, "betas": ((0.98, 0.92, 0.99), "rates of gradient, its differences, and second moment")},
         adam_like=True, state_words=4.0, rate=Relative("adamw", 2.0, "arXiv 2208.06677: above AdamW's"))
_library("adabelief", "AdaBelief", "Adam that divides by the deviation of gradients from their average",
         "Zhuang et al. 2020, arXiv 2010.07468", {**_MOMENTS, "eps": 1e-16}, rate=_SAME_STEP, adam_like=True)
_library("laprop", "LaProp", "Adam that normalises each gradient before averaging it",
         "Ziyin et al. 2020, arXiv 2002.04839",
         {**_MOMENTS, "eps": 1e-15, "centered": (False, "divide by the deviation from the mean")}, rate=_SAME_STEP,
         adam_like=True)
_library("stableadamw", "StableAdamW", "AdamW with each tensor's update clipped to root mean square 1",
         "Wortsman et al. 2023, arXiv 2304.13013",
         {**_MOMENTS, "betas": (0.9, 0.99),
          "kahan_sum": (False, "carry the rounding errors of 16-bit parameters to the next step")},
         elementwise=False, rate=_SAME_STEP)
_library("grams", "Grams", "Adam's magnitudes with the gradient's signs", "Cao et al. 2024, arXiv 2412.17107",
         {**_MOMENTS, "eps": 1e-6}, rate=_SAME_STEP)
_library("tiger", "Tiger", "sign of an averaged gradient, with one state tensor",
         "J. Su 2023, github.com/bojone/tiger", {"beta": (0.965, "rate of the gradient's average"), **_FOREACH},
         state_words=1.0, rate=_SIGN)
_library("came", "CAME", "Adafactor with a confidence in its own updates: factored memory",
         "Luo et al. 2023, arXiv 2307.02047",
         {"betas": ((0.9, 0.999, 0.9999), "rates of update, second moment, and instability"),
          "clip_threshold": (1.0, "largest root mean square of an update before averaging"),
          "eps1": (1e-30, "added to squared gradients"), "eps2": (1e-16, "added to squared instabilities"), **_FOREACH},
         elementwise=False, state_words=1.0,
         rate=Relative("adamw", 0.3, "between its authors' 0.5 to 0.9 of AdamW's and a short sweep's 0.15"))
_library("adamuon", "AdaMuon", "orthogonalised momentum with a second moment, AdamW for the rest",
         "Si et al. 2025, arXiv 2507.11005",
         {"betas": ((0.9, 0.95), "matrices: momentum and second moment"), "ns_steps": 5, **_OF_THE_REST,
          "adamw_betas": ((0.9, 0.999), "moments' rates of parameters that are not matrices"),
          "eps": 1e-10, **_FOREACH},
         flops=products.orthogonalised_single, elementwise=False, by_kind=True, rate=_AS_D_MUON)
_library("normuon", "NorMuon", "Muon with each neuron's update normalised, AdamW for the rest",
         "Li et al. 2025, arXiv 2510.05491",
         {"momentum": (0.95, "rate of the matrices' momentum"),
          "beta2": (0.95, "rate of the neurons' second moment"), "nesterov": True, "ns_steps": 5,
          "update_scale": ("match_rms", "match_rms: root mean square 0.2, as AdamW's; preserve_norm: as Muon's"),
          **_OF_THE_REST, "adamw_betas": ((0.9, 0.95), "moments' rates of parameters that are not matrices"),
          "eps": 1e-10, **_FOREACH},
         flops=products.orthogonalised_single, elementwise=False, by_kind=True, state_words=1.3, rate=_AS_D_MUON)


# ---- beside their rules ----
def _rows_of_rules() -> Iterator[Row]:
    """Rows beside their rule or matrix optimizer, `ROW = Row(...)` in its module; they are read, not imported."""
    known = {"Row": Row, "Relative": Relative, "Usual": Usual, "products": products}
    here = Path(__file__).parent
    for file in sorted([*here.glob("rules/*.py"), *here.glob("optimizers/matrix/*.py")]):
        text = file.read_text(encoding="utf-8")
        for node in ast.parse(text).body if "\nROW = " in text else ():
            match node:
                case ast.Assign(targets=[ast.Name(id="ROW")], value=value):
                    yield eval(ast.unparse(value), known)


for _row in _rows_of_rules():
    OPTIMIZERS.add(_row.name, _row, *_row.aliases)
