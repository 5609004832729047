"""Settings of a run: sections, validation, and the resolved specification."""
