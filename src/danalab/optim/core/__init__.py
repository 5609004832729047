"""What every optimizer of this package is built from: the base class, state, settings, parameter kinds."""
