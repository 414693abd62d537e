"""LEARNING: tensors in, tensors out."""
