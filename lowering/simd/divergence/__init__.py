"""What lanes of one vector do when their loops take different numbers of trips."""
