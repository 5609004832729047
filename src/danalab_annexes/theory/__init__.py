"""The studies of `danalab theory`: each module computes its studies (arrays and parameters) and draws them."""
