"""Hyper-parameters of the optimizer from the configuration of a run.

Settings of the run (kappa, weight decay, ...) are settings of some optimizers; all others of an optimizer are in
`optimizer_settings`, which wins over the rules.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from danalab.errors import UserError
from danalab.scaling.small_runs import slow_momentum
from danalab.train.config.fields import flag
from danalab.train.config.train_config import TrainConfig

RESERVED = {"horizon": "the run's length is --iterations"}
"""Settings of optimizers that a run sets itself."""


def checked_settings(config: TrainConfig) -> dict[str, Any]:
    """`config.optimizer_settings` with values of the right types."""
    if not config.optimizer_settings:
        return {}
    from danalab.optim import optimizer_spec
    from danalab.optim.core.checks import check_numbers_of
    from danalab.optim.registry.spec import read_settings

    spec = optimizer_spec(config.opt)
    own = {field.name for field in fields(TrainConfig)}
    for name in config.optimizer_settings:
        if name in RESERVED and name in spec.settings:
            raise UserError(f"{flag(name)}: {RESERVED[name]}")
        if name in own and name in spec.settings:
            raise UserError(f"optimizer_settings: {name} is a setting of the run; give it as {flag(name)}")
    settings = read_settings(spec, config.optimizer_settings)
    check_numbers_of(f"--opt {spec.name}", spec.settings, settings)
    return settings


def optimizer_settings(config: TrainConfig, steps: int) -> dict[str, Any]:
    """The hyper-parameters for `build_optimizer`."""
    from danalab.optim import optimizer_spec

    known = optimizer_spec(config.opt).settings
    settings: dict[str, Any] = {
        name: getattr(config, name)
        for name in ("kappa", "delta", "weight_decay", "wd_ts", "decay_bound")
        if name in known
    }
    for name in ("clipsnr", "gamma3"):
        value = getattr(config, name)
        if value is not None and name not in known:
            raise UserError(f"--{name} {value}: {config.opt} has no {name}; leave it out")
        if value is not None:
            settings[name] = value
    further = checked_settings(config)
    if "beta3_warmup" in known:
        settings |= slow_momentum(steps, config.delta, config.kappa)
    settings |= _betas(config, settings.get("betas"), known, further)
    return settings | further


def _betas(config: TrainConfig, ruled: Any, known: Mapping[str, Any], further: Mapping[str, Any]) -> dict[str, Any]:
    """--beta1 and --beta2, wherever the optimizer has them."""
    given = {name: value for name in ("beta1", "beta2") if (value := getattr(config, name)) is not None}
    if not given:
        return {}
    flags = ", ".join(map(flag, given))
    if "betas" in further:
        raise UserError(f"{flags}: --betas is given, too; leave one of them out")
    if "betas" in known:
        betas = list(ruled or known["betas"].default)
        for place, name in enumerate(("beta1", "beta2")):
            betas[place] = given.get(name, betas[place])
        return {"betas": tuple(betas)}
    missing = [name for name in given if name not in known]
    if missing:
        raise UserError(f"{flags}: {config.opt} has no constant betas; leave them out")
    return given
