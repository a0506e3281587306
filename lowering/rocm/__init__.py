"""AMD's GPUs: the driver and the backend."""
