"""What single commands of the command line do, and how all of them talk."""
