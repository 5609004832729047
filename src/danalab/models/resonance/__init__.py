"""The resonance language model: tokens are mixed by learned damped oscillators, in the frequency domain, causally."""
