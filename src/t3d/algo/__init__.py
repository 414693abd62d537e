"""The TD3 algorithm: networks, updates and the learner. Tensors in, tensors out."""
