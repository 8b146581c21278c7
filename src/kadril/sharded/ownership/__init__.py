"""Who owns what: parameters, cut into pieces that belong to ranks, and the memory they lie in."""
