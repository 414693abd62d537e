"""What a program can do with runs: `import t3d` offers it, and the command line is its view."""
