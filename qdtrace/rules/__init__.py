"""Tables of local rules, one file for each family of operations. A rule states its rewrite in its docstring."""
