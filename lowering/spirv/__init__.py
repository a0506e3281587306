"""SPIR-V modules for OpenCL: code to look at and to take elsewhere; XLA has no devices that run it."""
