"""Regular tasks as Triton source."""
