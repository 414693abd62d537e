"""The training loop, and what builds, resumes, reports and saves a run."""
