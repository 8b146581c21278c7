"""Checkpoints: kadril's own format, and that of torch.distributed.checkpoint."""
