"""Acting with a trained policy: networks, spaces, policies and their files. NumPy and safetensors alone."""
