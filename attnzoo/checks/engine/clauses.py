"""The conventions that every layer keeps, a sentence each. Laws and failures quote them by number."""

from __future__ import annotations

CLAUSES = {
    "C1": (
        "Layers take (b, t, d_model) and return the same; inside, q is (b, h, t, d), k and v are (b, g, s, d), "
        "weights are (b, h, t, s). No batch or no tokens gives an empty output."
    ),
    "C2": (
        "Logits are scale * q·k; scale, where not given, is head_dim ** -0.5; a given one, zero too, is taken as it "
        "is. Order: scale, softcap, bias, visibility, softmax; a sink is one more logit, neither scaled nor capped."
    ),
    "C3": (
        "A boolean mask is True where attention is allowed; a floating mask is added in the wide type and gets its "
        "gradient, and only -inf blocks; masks, key_mask and causality intersect."
    ),
    "C4": (
        "mask has 2 axes, exactly (t, s), or 4 that broadcast to (b, h, t, s); padding goes in as boolean key_mask "
        "(b, s)."
    ),
    "C5": (
        "Causality, windows and documents go by token index, cached tokens counted, bottom-right; positions feed "
        "rotations and biases only; context has none of these."
    ),
    "C6": (
        "A query that may see no key gives exactly zero, with finite zero gradients; finite values behind a mask "
        "never reach an output or a gradient."
    ),
    "C7": "Query head h reads key-value head h // (heads // kv_heads).",
    "C8": "A window of n is n keys, the query's own included; where nothing is causal, those with |i - j| < n.",
    "C9": "RoPE names its layout, half or interleaved; angles are made in float64, at any position.",
    "C10": "Softmax is taken in float32, or the layer's type where that is wider, and the result cast back.",
    "C11": "Dropout (0 <= p < 1) acts on the weights, is off in eval, and dropout=0 is bitwise the same as none.",
    "C12": (
        "need_weights, backend, an all-True mask and a cache never change the output beyond rounding; the weights "
        "returned are per head, before dropout, and the ones used."
    ),
    "C13": (
        "Inputs are never changed; a cache is changed in place, only by the call it is handed to, and not by a "
        "call that is refused; cached tokens are detached."
    ),
    "C14": "No argument is ignored: what a variant cannot do raises Unsupported, naming the argument.",
    "C15": "Row sums are declared: one, at most one, or free.",
    "C16": "Parameters are initialised from torch's global generator only; buffers are not saved unless learned.",
    "C17": (
        "A half type errs at most twice as much as torch's own SDPA fed the same rounded q, k and v, and as the "
        "plain layer in that type."
    ),
    "C18": (
        "A call leaves no trace: in eval no random state is touched, nothing is remembered, instances share "
        "nothing, hooks run."
    ),
    "C19": "Everything follows the input's device and the layer's dtype; a mismatch is an InputError that names both.",
}
