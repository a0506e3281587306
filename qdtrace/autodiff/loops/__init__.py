"""The reverse of one loop: what is kept of its iterations, and how they are walked back."""
