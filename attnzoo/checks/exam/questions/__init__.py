"""Questions to a layer, whose answers tell mistakes apart: calls with numbers for answers, and facts."""

from __future__ import annotations

from attnzoo.checks.exam.questions import (
    building,
    caches,
    calls,
    conduct,
    kinds,
    large,
    masks,
    memory,
    places,
    training,
)
from attnzoo.checks.exam.questions.witness import Answer, Question, Witness

__all__ = ["QUESTIONS", "Answer", "Question", "Witness"]

# The costly ones last: by then few faults are left that have to answer them.
QUESTIONS: dict[str, Question] = {
    question.name: question
    for question in (
        calls.plain, training.gradient, calls.weights, masks.mask, masks.padded_left, masks.mask_of_floats,
        caches.steps, calls.long, kinds.window_of_one, kinds.window_of_two, kinds.window_of_all,
        kinds.window_far, kinds.window_both_ways, kinds.window_by_place, kinds.window_of_none, kinds.ring_steps,
        kinds.ring_chunks, kinds.ring_bytes, kinds.ring_padded, kinds.ring_masked, kinds.ring_weights,
        kinds.ring_crop, kinds.ring_crop_far, kinds.ring_reorder, kinds.ring_reset, kinds.grown_bytes,
        kinds.steps_masked, kinds.documents, kinds.documents_of_two_halves, kinds.documents_of_one,
        kinds.documents_below_zero,
        kinds.documents_masked, kinds.documents_weights, kinds.documents_of_floats, kinds.small_cap,
        kinds.small_cap_masked, kinds.small_cap_gradient, kinds.far_cap, kinds.cap_of_none,
        kinds.sinks_gradient, kinds.sinks_gradient_with_weights, kinds.sinks_of_three, kinds.equal_tokens,
        kinds.fewer_queries, calls.output_with_weights, calls.alone, calls.one_token, calls.seventeen,
        calls.single, calls.half, calls.half_type, calls.half_softmax, calls.loud, calls.half_weights,
        calls.matrix, calls.staged, masks.mask_per_sample, masks.mask_per_head, masks.mask_of_all,
        masks.mask_of_floats_per_head, masks.mask_gradient, masks.mask_of_minus_infinity, masks.mask_in_half,
        masks.mask_of_integers,
        masks.mask_strewn, masks.padded_in_half, masks.mask_of_three_axes, masks.padded_right, masks.padded_alone,
        masks.padded_and_masked, masks.padding_of_integers, masks.blind, masks.blind_by_both,
        masks.blind_gradient, masks.blind_value_gradient, masks.behind_padding, masks.behind_overflow,
        training.value_gradient, training.training, training.training_gradient,
        training.training_masked, training.masked_without_gradients, training.weights_in_inference,
        training.dropout_in_eval, training.dropout_in_training, training.dropout_mean, training.dropout_weights,
        training.transposed_input, training.expanded_gradient, training.empty, places.places,
        places.places_per_sample, places.places_backwards, places.places_far, places.distance_alone,
        places.places_in_half, places.places_of_floats, places.context, places.context_of_one,
        places.context_gradient, places.context_masked, places.context_weights, places.context_learned,
        caches.chunks, caches.steps_after_reset, caches.steps_after_crop,
        caches.steps_after_reorder, caches.steps_in_turn, caches.steps_padded, caches.step_weights,
        caches.step_weights_padded, caches.step_gradient, caches.cache_bytes,
        caches.cache_overflow, caches.cache_refusal, conduct.input_type, conduct.input_kept, conduct.repeatable,
        conduct.instances, conduct.saved, conduct.copied, conduct.cast, conduct.buffers, conduct.hooks,
        conduct.under_autocast, conduct.masked_under_autocast, conduct.steps_under_autocast,
        conduct.zeros, conduct.seeded, building.length_limit, building.bias_made, building.given_scale,
        building.no_scale, building.default_scale, building.causality_given, building.causality_masked,
        calls.four, building.uneven_width, building.uneven_groups, building.odd_dropout, building.odd_backend,
        building.scale_below_zero, building.places_beyond_the_length, calls.very_loud, calls.half_very_loud,
        calls.weights_gradient, masks.mask_of_all_in_one_head, masks.mask_of_low_numbers, masks.mask_of_one_column,
        places.places_of_each_start, places.places_below_zero, places.context_of_as_many, caches.steps_at_places,
        caches.steps_after_turn, caches.cache_refused_mask, training.dropout_under_mask, training.dropout_pattern,
        training.gradient_in_half, training.gradient_after_another_call, training.other_parameters,
        training.frozen_gradient, training.learns_everywhere, training.gradient_twice, memory.result_kept,
        memory.mask_changed, memory.low_mask_kept, memory.input_freed, memory.switches,
        memory.loaded_from_nothing, memory.modes, memory.stirred, memory.heads_at_birth,
        memory.cast_after_a_call, memory.nan_shown, large.nine_padded, large.wide_heads,
        large.hundreds, large.hundred_padded_steps, large.hundreds_of_steps, large.six_hundred,
        large.six_hundred_in_half, large.far_steps_in_half, large.six_hundred_masked,
        large.six_hundred_weights, large.hundreds_gradient,
        kinds.grown, kinds.kernels, kinds.kernels_padded, kinds.kernels_that_drop, kinds.half_kernels,
        kinds.work_of_a_step, kinds.memory, kinds.work,
    )
}  # fmt: skip
