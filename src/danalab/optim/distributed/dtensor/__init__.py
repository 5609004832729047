"""Any optimizer of the registry on DTensor parameters, with the numbers of one process."""
