"""What is measured of a training: pure functions, without files and environments."""
