"""Speed of preparing, loading and validating data."""
