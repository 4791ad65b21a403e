"""What CIFAR-10 needs of torchvision, for machines where none is installed: the same names, files and errors."""
