"""Arrays of lanes on a GPU: a warp works on one lane, whose arrays stay in registers."""
