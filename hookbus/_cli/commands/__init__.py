"""Functions of the commands, with one module for each group.

They import what they run inside the function, so that `hookbus --help` and the commands that only read metadata do not
import torch.
"""
