"""Timing and counting: attnzoo's layers against hand-written torch, and against other libraries.

A work is a problem and those who compute it (`works`); each is held to a float64 reference and then timed in turn with
the others (`runner`, `timing`). What does not depend on a clock is counted (`counts`).
"""
