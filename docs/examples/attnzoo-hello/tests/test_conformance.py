"""The variant is held to every law: one test a law."""

from attnzoo.testing import conformance

test_conforms = conformance("hello_qk_norm")
