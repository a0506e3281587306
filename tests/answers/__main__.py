"""`python -m tests.answers` writes its part of docs/coverage.md."""

from .document import PATH, written

PATH.write_text(written(PATH.read_text()))
