"""The backend of NVIDIA's GPUs."""
