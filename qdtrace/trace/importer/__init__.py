"""Translates jaxprs to graph equations; see README.md in this folder."""

from qdtrace.trace.importer.core import Importer
from qdtrace.trace.importer.registry import def_import_rule
from qdtrace.trace.importer.values import ArrayRef, MemoryArray, PrivateArray, RefValue, Value

__all__ = ["ArrayRef", "Importer", "MemoryArray", "PrivateArray", "RefValue", "Value", "def_import_rule"]
