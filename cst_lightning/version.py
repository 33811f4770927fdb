"""The version, alone in a file so that building the package need not import torch."""

VERSION = "0.1.0"
