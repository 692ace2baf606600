"""Every installed variant conforms, on the device of --device."""

from attnzoo.testing import conformance

test_conforms = conformance("*")
