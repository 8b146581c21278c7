"""Rules for single families of calls: what `forward` may do besides calling the usual layers."""
