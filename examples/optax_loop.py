"""ADana in JAX, as an optax gradient transformation.

    pip install 'danalab[theory]'
    python examples/optax_loop.py

The problem is a regression on features whose scales follow a power law, the setting of docs/theory.md.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

from danalab.optim.optax import adana

STEPS, BATCH, FEATURES, PEAK = 2000, 32, 200, 3e-3

scales = jnp.arange(1, FEATURES + 1) ** -1.0
target = jnp.ones(FEATURES)

schedule = optax.warmup_cosine_decay_schedule(
    0.0, PEAK, warmup_steps=50, decay_steps=STEPS, end_value=0.1 * PEAK
)
# Weight decay follows lr / peak: with a schedule, peak_lr is required.
optimizer = adana(schedule, peak_lr=PEAK, weight_decay=1e-4, wd_ts=STEPS / 10)


def loss_of(params, key):
    x = jax.random.normal(key, (BATCH, FEATURES)) * scales
    return jnp.mean((x @ (params["w"] - target)) ** 2) / 2


@jax.jit
def step(params, state, key):
    loss, grads = jax.value_and_grad(loss_of)(params, key)
    updates, state = optimizer.update(grads, state, params)
    return optax.apply_updates(params, updates), state, loss


if __name__ == "__main__":
    params = {"w": jnp.zeros(FEATURES)}
    state = optimizer.init(params)
    for number in range(STEPS):
        params, state, loss = step(params, state, jax.random.key(number))
        if number % 400 == 0 or number == STEPS - 1:
            print(f"step {number:4}  loss {loss:.1e}")
