"""Vector maths as LLVM text; see README.md and `library`."""
