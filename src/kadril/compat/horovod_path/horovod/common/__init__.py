"""What all frameworks of Horovod share."""
