"""The variants that come with attnzoo. They enter by the entry point, as a stranger's would."""

from __future__ import annotations

import attnzoo
from attnzoo_builtins import alibi, gqa, mha, packed, rope, single_head, sinks, sliding_window, softcap


@attnzoo.hookimpl
def attnzoo_variants() -> list[attnzoo.Variant]:
    """All built-in variants."""
    return [
        single_head.VARIANT,
        mha.VARIANT,
        gqa.VARIANT,
        gqa.MQA,
        rope.VARIANT,
        sliding_window.VARIANT,
        softcap.VARIANT,
        alibi.VARIANT,
        sinks.VARIANT,
        packed.VARIANT,
    ]
