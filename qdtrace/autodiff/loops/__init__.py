"""The reverse of one loop: which states of its iterations are kept, and how they are walked back."""
