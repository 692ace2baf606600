"""attnzoo: every kind of attention behind one door, and one suite of laws that holds them all."""

__version__ = "0.1.0"
