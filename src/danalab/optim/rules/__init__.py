"""Update rules: pure functions of tensors and scalars, one file for each family, with its foreach update."""
