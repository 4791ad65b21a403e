"""Stand-in for the part of torchvision that CIFAR-10 requires, with the same names, files and errors."""
