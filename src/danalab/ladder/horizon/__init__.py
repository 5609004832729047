"""The horizon: how an optimizer's gain changes with tokens per parameter, with intervals and tests."""
