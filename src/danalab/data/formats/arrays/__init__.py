"""Pre-tokenised arrays: folders of .npy, .npz or .pt files of ids, [sequences, length]; see docs/pretokenised.md."""
