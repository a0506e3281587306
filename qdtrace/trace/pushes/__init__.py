"""Results of unknown length, which loops push."""
