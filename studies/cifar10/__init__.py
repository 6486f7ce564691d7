"""CIFAR-10 with 100 clients: six methods, searched on validation samples."""
