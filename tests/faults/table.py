"""The table: every fault that is planted, where, and what must catch it. One a line; `make faults` prints it.

A new mechanism adds its faults here: at least that its noise is half of what is accounted for, that one record moves
its value further than the sensitivity, that its noise is used twice and, where it is sold, that it is not charged.
"""

from __future__ import annotations

import dp_accounting as dpa

from airlock.bundle import read_verified
from tests import test_pipeline
from tests import test_private_training as of_modules
from tests.accounting import test_epsilon, test_events, test_privacy_filter, test_renyi
from tests.auditing import test_evaluation, test_perplexity, test_regression_errors
from tests.auditing.attacks import test_worst_case as of_worst_case
from tests.bundle import test_answering, test_models, test_replan, test_strangers, test_swapped
from tests.bundle import test_register as of_register
from tests.bundle.policy import test_rules as policy_rules
from tests.bundle.signing import test_approval
from tests.bundle.signing import test_signatures as of_signatures
from tests.data import test_memory as in_memory
from tests.data import test_people as people_apart
from tests.data import test_split, test_tables
from tests.data import test_storage as of_files
from tests.data import test_text as of_texts
from tests.faults import checks, plants
from tests.faults.bundles import of_a_bundle
from tests.faults.catchers import (
    RELEASED,
    called,
    court,
    court_of_config,
    court_of_numbers,
    court_of_people,
    court_of_table,
    court_of_votes,
    one_run,
    sold,
    with_folder,
    with_graphs,
)
from tests.faults.fault import Catcher, Fault, Plant
from tests.ledger import checks as ledger_checks
from tests.ledger import test_register
from tests.mechanisms import test_aggregate, test_counts, test_discrete, test_exponential, test_local, test_randomness
from tests.mechanisms import test_gaussian as of_gaussian
from tests.methods import test_charging as charging
from tests.methods import test_class_weights as weighted
from tests.methods import test_floor
from tests.methods import test_rows as feature_rows
from tests.methods import test_search as of_search
from tests.methods import test_secret_noise as secret_noise
from tests.methods.features import test_noised as of_noised
from tests.methods.student import test_ensemble as of_ensemble
from tests.methods.student import test_neighbours as of_near_student
from tests.methods.weights import test_fine_tuning as of_fine_tuning
from tests.methods.weights.test_gaussian import TestGaussian
from tests.methods.weights.test_head import TestHead
from tests.nets import test_bert, test_domain, test_hugging_face, test_wide_resnet
from tests.training import test_adaptive_clip, test_convex, test_loop, test_private, test_sampling
from tests.training import test_class_weights as of_weights
from tests.training import test_lots_of_people as of_people
from tests.training import test_neighbours as of_cells
from tests.training.per_sample import test_copies, test_graphs, test_leave_one_out, test_people, test_sealed
from tests.training.per_sample import test_language_models as of_language_models
from tests.training.per_sample import test_self_check as of_self_check
from tests.training.per_sample import test_transformers as of_transformers

SYSTEM = secret_noise.noise_is_the_systems
CHARGED = charging.every_answer_is_charged
BLOCK = called(checks.one_record_moves_a_full_block_by_its_bound)
ENGINE = called(checks.the_engine_trusts_its_book_keeping)
POLICY = called(policy_rules.every_limit_is_asked_for)
FOLLOWS = called(checks.noise_is_independent_between_coordinates_and_steps)
# In the court, half as many pairs again as the slowest fault takes, or more: whoever is quiet has been tried as long.
GAUSSIAN, SHAPED, HEAD = (court(f"weights/{method}", 2500) for method in ("gaussian", "shaped", "head"))
PERSON = court_of_people("weights/gaussian", 100)
TABLE = court_of_table(2500)
ONE_PERSON = called(test_people.test_one_person_moves_the_sum_by_at_most_the_bound, "layer: linear", "fp32")
SHARDED, DENSITY = court("twin/sharded", 2000), court("twin/kde-sharded", 500)
ENSEMBLE, VOTES, TEACHER = court("student/ensemble", 2000), court_of_votes(500), court("student/private-teacher", 1000)
NOISED_PERSON = court_of_people("features/noised", 400)
NOISED, ANSWERS, PER_QUERY = (
    court("features/noised", 4000),
    court("answers/head", 2500),
    court("answers/per-query", 6000),
)
TAUGHT_BY_NEAR = court("student/neighbours", 4000)
ANSWER_VOTES, NEIGHBOURS = court("answers/votes", 25_000), court("answers/neighbours", 6000)
MODELS, SCORES = court("tune/models", 3000), court("tune/scores", 900)
SEARCH_PLANNED = with_folder(of_search.the_worst_candidate_is_paid_for_as_often_as_it_runs)


def _forged(case: str) -> Catcher:
    """Planning again must notice this forgery."""
    changes, says = test_replan.FORGERIES[case]
    forgery = test_replan.test_a_consistent_forgery_is_not_what_the_config_leads_to
    return of_a_bundle(forgery, case, changes=changes, says=says)


def _in_processes(plant: Plant) -> Plant:
    """Planted into the processes of a group."""
    return lambda patch: patch.setattr(checks, "in_every_process", plant)


IN_SHARDS = called(checks.two_processes_with_shards_train_the_network_of_one, long=True)


def _long(name: str, where: str, plant: object, caught_by: Catcher) -> Fault:
    return Fault(name, where, plant, caught_by, long=True)  # type: ignore[arg-type]


def _made_up(name: str, where: str, plant: object, caught_by: Catcher) -> Fault:
    return Fault(name, where, plant, caught_by, accounting=True)  # type: ignore[arg-type]


# fmt: off
FAULTS: tuple[Fault, ...] = (
    # Noise
    Fault("noise over 1.3", "GaussianNoise", plants.noise_over(1.3), called(of_gaussian.test_the_noise_has_the_scale_that_is_accounted_for, 1.0, 1.0)),
    _long("noise over 2", "GaussianNoise", plants.noise_over(2.0), GAUSSIAN),
    Fault("noise over 10", "GaussianNoise", plants.noise_over(10.0), GAUSSIAN),
    Fault("noise in floating point, off the grid", "GaussianNoise", plants.noise_off_the_grid, called(of_gaussian.test_every_output_lies_on_the_public_grid)),
    Fault("no noise on one class", "PrivateGradients", plants.noise_missing_on(2100, 2400), called(test_private.test_every_coordinate_gets_noise_of_the_accounted_scale, 0)),
    Fault("no noise on the first tensor", "PrivateGradients", plants.noise_missing_on(0, 24), GAUSSIAN),
    Fault("no noise on the last tensor", "PrivateGradients", plants.noise_missing_on(24, 32), GAUSSIAN),
    Fault("tensors share their noise", "PrivateGradients", plants.tensors_share_their_noise, FOLLOWS),
    Fault("steps share their noise", "PrivateGradients", plants.steps_share_their_noise, FOLLOWS),
    Fault("every child of a stream is the same", "Stream", plants.every_child_is_the_same, FOLLOWS),
    Fault("a resumed run begins with the first noise", "PrivateGradients", plants.a_resumed_run_begins_with_the_first_noise, with_folder(test_loop.test_a_resumed_run_ends_in_the_same_bits, "sgd", True)),
    Fault("noise may be read twice", "Stream", plants.noise_may_be_read_twice, called(test_randomness.test_a_leaf_is_read_once_and_a_label_opened_once)),
    Fault("half of the planned noise", "PrivateGradients", plants.half_of_the_planned_noise, RELEASED),
    Fault("discrete noise on one side", "discrete", plants.noise_on_one_side, called(test_discrete.test_the_distribution_is_the_stated_one_and_half_the_noise_is_noticed, "laplace", 7)),
    Fault("the exponential mechanism takes half the spread", "ExponentialMechanism", plants.half_the_spread, called(test_exponential.test_every_loss_of_a_pair_lies_in_one_interval_of_length_epsilon)),
    _long("no noise on the count of an adaptive clip norm", "QuantileBound", plants.no_noise_on_the_count, called(test_adaptive_clip.test_the_count_gets_noise_of_the_accounted_scale, 5, long=True)),
    Fault("labels stay as with twice the epsilon", "RandomisedResponse", plants.labels_stay_twice_as_surely, called(test_local.test_a_label_stays_as_often_as_stated_and_moves_anywhere_else_alike)),
    _long("two processes, and none adds the noise", "Group", _in_processes(plants.no_process_adds_the_noise), called(checks.two_processes_add_the_noise_once, long=True)),
    _long("each process adds noise to all rows of a parameter, not to its own", "ShardedParameters", _in_processes(plants.each_process_adds_noise_to_all_rows), IN_SHARDS),
    _long("two shards of a parameter get the same noise", "Piece", _in_processes(plants.shards_share_their_noise), IN_SHARDS),
    # Secrecy
    Fault("the secret key follows from the public seed, marked secure", "Randomness", plants.the_key_follows_from_the_public_seed, called(SYSTEM, "weights/gaussian")),
    Fault("the same, for answers", "Randomness", plants.the_key_follows_from_the_public_seed, called(SYSTEM, "answers/head")),
    Fault("the secret key is the public seed and a counter", "Randomness", plants.the_key_is_the_public_seed_and_a_counter, called(SYSTEM, "answers/head")),
    Fault("the system's key is a constant", "Stream", plants.the_systems_key_is_a_constant, called(SYSTEM, "answers/per-query")),
    Fault("gradients take their noise from the seed, marked secure", "DpSgd", plants.gradients_take_their_noise_from_the_seed, called(SYSTEM, "weights/gaussian")),
    Fault("lots are drawn by the seed", "Poisson", plants.lots_are_drawn_by_the_seed, called(SYSTEM, "weights/gaussian")),
    Fault("dropout and augmentation by the public seed", "loop", plants.chance_by_the_public_seed, called(test_adaptive_clip.test_what_chance_does_to_records_is_secret)),
    # Sensitivity
    Fault("no clipping", "Clip", plants.no_clipping, GAUSSIAN),
    Fault("clip skipped for biases", "Clip", plants.biases_not_clipped, BLOCK),
    Fault("clip skipped for the last row of a block", "Clip", plants.the_last_row_of_a_block_not_clipped, ENGINE),
    Fault("clip skipped for one record", "Clip", plants.one_record_not_clipped, BLOCK),
    Fault("adapters beside a network's layers are not clipped", "Clip", plants.adapters_not_clipped, with_folder(of_transformers.an_adapted_network_keeps_the_bound)),
    Fault("the last layer alone gets half the noise", "HeadFirst", plants.the_last_layer_alone_gets_half_the_noise, with_folder(of_fine_tuning.the_last_layer_gets_its_noise)),
    Fault("the last layer alone is clipped at twice its bound", "HeadFirst", plants.the_last_layer_alone_is_clipped_at_twice_its_bound, with_folder(of_fine_tuning.a_record_moves_the_last_layer_little)),
    Fault("a table that is also the head is clipped use by use", "BookKeeper", plants.a_shared_table_is_clipped_use_by_use, with_folder(of_language_models.test_a_table_that_is_also_the_head_has_the_gradient_of_both)),
    Fault("texts are weighed by the tokens of their batch", "nets.hugging_face", plants.texts_are_weighed_by_the_tokens_of_their_batch, with_folder(of_language_models.a_text_is_weighed_by_itself)),
    Fault("half the norm of GPT-2's dense layers", "per_sample.layers", plants.half_the_norm_of_gpt2s_layers, with_folder(of_transformers.test_the_dense_layer_of_gpt2_has_a_rule_of_its_own)),
    Fault("made-up texts are empty", "nets.domain", plants.made_up_texts_are_empty, called(test_domain.a_network_for_text_is_tried_on_texts)),
    Fault("a card names the folder of its network", "nets.hugging_face", plants.a_card_names_the_folder, with_folder(test_hugging_face.test_a_card_names_no_path_and_nothing_that_can_be_loaded)),
    Fault("the largest tensor's norm for the L2 norm", "Clip", plants.the_largest_tensor_for_the_norm, BLOCK),
    Fault("Gram norms without cross terms", "per_sample.layers", plants.norms_without_cross_terms, ENGINE),
    Fault("copies of a record counted as records", "per_sample.engine", plants.copies_counted_as_records, called(test_copies.test_one_record_moves_the_sum_by_at_most_the_bound)),
    Fault("records of a person clipped one by one", "per_sample.engine", plants.records_of_a_person_clipped_one_by_one, PERSON),
    Fault("the same, next to others", "per_sample.engine", plants.records_of_a_person_clipped_one_by_one, ONE_PERSON),
    Fault("a person in two chunks", "per_sample.engine", plants.a_person_in_two_chunks, ONE_PERSON),
    Fault("rows of a person without cross terms", "per_sample.people", plants.rows_of_a_person_without_cross_terms, called(checks.the_engine_trusts_its_book_keeping_of_people)),
    Fault("squares of tiny inputs vanish", "per_sample.sums", plants.squares_vanish_in_float32, called(test_leave_one_out.test_a_tiny_input_of_a_huge_gradient_does_not_hide_from_its_norm)),
    Fault("no margin for a person's rows that cancel", "per_sample.people", plants.no_margin_for_rows_that_cancel, called(test_people.test_two_rows_that_differ_in_one_bit_have_no_smaller_square_than_their_sum, "ragged")),
    Fault("in fixed shapes, a person's last row without cross terms", "per_sample.people", plants.the_last_row_in_fixed_shapes_is_left_out, called(test_people.test_fixed_shapes_give_what_ragged_ones_give, "linear")),
    Fault("more records of a person than are declared", "devices", plants.all_records_of_a_person, called(of_people.test_whoever_is_drawn_contributes_her_own_records_and_at_most_the_bound)),
    Fault("the first records of a person in every step", "devices", plants.the_first_records_of_a_person, called(of_people.test_which_records_of_a_person_enter_is_secret_and_new_in_each_step)),
    Fault("records of a person chosen by the public seed", "loop", plants.choice_by_the_public_seed, called(of_people.test_which_records_of_a_person_enter_is_secret_and_new_in_each_step)),
    Fault("records are drawn in place of people", "devices", plants.records_are_drawn_for_people, called(of_people.test_everybody_enters_a_lot_with_the_same_probability_however_many_records_she_has)),
    Fault("a frozen parameter keeps what a record wrote", "per_sample.sealed", plants.nothing_is_put_back, called(test_sealed.test_training_leaves_nothing_of_a_record_in_the_network, "writes a frozen parameter")),
    Fault("buffers and attributes keep what a record wrote", "per_sample.sealed", plants.nothing_is_put_back, called(test_sealed.test_everything_is_put_back)),
    Fault("a CUDA graph replays its first lot", "per_sample.graphs", plants.a_graph_replays_its_first_lot, with_graphs(test_graphs.test_one_graph_serves_every_bound, "conv2d", "flat", 1)),
    Fault("a CUDA graph keeps its first bound", "per_sample.graphs", plants.a_graph_keeps_its_first_bound, with_graphs(test_graphs.test_a_bound_that_comes_back_is_written_again)),
    Fault("a mean over the lot that was drawn", "private", plants.a_mean_over_the_lot_that_was_drawn, GAUSSIAN),
    Fault("the noisy sum over the lot that was drawn", "PrivateGradients", plants.a_noisy_sum_over_the_lot_that_was_drawn, GAUSSIAN),
    _long("twice the accounted sampling rate", "Poisson", plants.twice_the_sampling_rate, GAUSSIAN),
    Fault("lots of fixed size, accounted as Poisson", "Poisson", plants.lots_of_fixed_size, called(test_sampling.test_poisson_draws_each_record_with_the_same_probability)),
    Fault("one step more than accounted", "loop", plants.one_step_more, called(checks.as_many_noisy_steps_as_accounted)),
    _long("shards get the mean over processes, not the sum", "ShardedParameters", _in_processes(plants.shards_get_the_mean), IN_SHARDS),
    _long("each process draws its own lots", "Group", _in_processes(plants.every_process_has_streams_of_its_own), IN_SHARDS),
    _long("a record of a lot counts in every process", "Group", _in_processes(plants.a_record_counts_in_every_process), IN_SHARDS),
    # Accounting
    _made_up("epsilon read at 100 delta", "compute_epsilon", plants.epsilon_at_a_hundred_times_delta, called(test_epsilon.test_one_gaussian_meets_the_exact_curve)),
    _made_up("a foreign accountant has the last word", "compute_epsilon", plants.a_foreign_accountant_has_the_last_word, called(checks.a_foreign_accountant_lowers_no_epsilon)),
    _made_up("Rényi divergence without what delta costs", "compute_epsilon", plants.renyi_without_delta, called(test_epsilon.test_known_answers)),
    _made_up("a failure's probability is not taken off delta", "events", plants.failures_cost_nothing, called(test_events.test_a_failure_is_taken_off_delta_wherever_it_stands, dpa.GaussianDpEvent(2.0))),
    _made_up("only the first event is composed", "events", plants.only_the_first_event_is_composed, called(test_events.test_small_compositions_stay_simple)),
    _made_up("the last step is free", "events", plants.the_last_step_is_free, called(TestGaussian.test_the_event_is_that_of_dp_sgd)),
    _made_up("tuning runs are free", "BudgetSchedule", plants.tuning_runs_are_free, called(TestGaussian.test_tuning_runs_repeat_the_whole_event)),
    _made_up("sampling under replace-one, accounted as add-remove", "events", plants.sampling_under_replace_one, called(test_epsilon.test_sampling_under_replace_one_is_refused)),
    # Searches
    Fault("search: the mean number of runs, every time", "RepeatAndSelect", plants.as_many_runs(5), MODELS),
    _long("search: twenty runs, every time", "RepeatAndSelect", plants.as_many_runs(20), MODELS),
    Fault("search: scores without noise", "methods.search", plants.scores_without_noise, SCORES),
    _made_up("search: the winner is paid for as if alone", "RepeatAndSelect", plants.the_winner_is_paid_for_as_if_alone, SEARCH_PLANNED),
    _made_up("search: the first candidate stands for all", "events", plants.the_first_candidate_stands_for_all, SEARCH_PLANNED),
    _made_up("search: the last of several for the largest", "renyi", plants.the_last_of_several_for_the_largest, called(test_renyi.test_a_choice_is_as_bad_as_its_worst_at_every_order)),
    Fault("search: scores cost nothing", "bundle.card", plants.scores_cost_nothing, called(of_search.scores_are_on_the_card)),
    _made_up("search: what the losers assume is not stated", "methods.search", plants.only_the_winner_assumes, with_folder(of_search.what_any_candidate_assumes_is_assumed)),
    Fault("search: a resumed one draws anew", "methods.search", plants.a_resumed_search_draws_anew, with_folder(of_search.a_killed_search_goes_on_to_the_same_end)),
    # Records
    Fault("shards by position", "data.split", plants.shards_by_position, called(test_split.test_one_record_less_changes_one_shard)),
    Fault("a shard holds the next one too", "data.split", plants.shards_hold_the_next_one_too, called(test_split.test_every_record_lies_in_one_shard)),
    Fault("parts by position", "data.split", plants.parts_by_position, called(test_split.test_adding_a_record_changes_one_part_by_it_alone)),
    Fault("equal records share a part", "data.split", plants.equal_records_share_a_part, called(test_split.test_equal_records_fall_into_parts_like_different_ones)),
    Fault("records lie in a file with a name", "data.limits", plants.records_lie_in_a_file_with_a_name, with_folder(of_files.test_nobody_else_can_open_the_file)),
    Fault("parts in the order of the file", "data.split", plants.parts_in_the_order_of_the_file, called(test_split.test_adding_one_of_several_equal_records_changes_one_part_by_it_alone)),
    Fault("holdout records are trained on", "data.split", plants.holdout_records_are_private_too, called(test_split.test_every_record_is_in_one_part)),
    Fault("a person in two parts", "data.split", plants.a_person_in_two_parts, called(people_apart.test_nobody_is_in_two_parts_and_a_test_person_has_one_record)),
    Fault("split by content though people are declared", "data.split", plants.people_are_split_by_content, called(people_apart.test_the_part_follows_from_the_identifier_and_not_from_the_content)),
    Fault("shards by content though people are declared", "data.split", plants.people_are_sharded_by_content, called(people_apart.test_a_person_less_changes_one_shard_by_her_alone)),
    Fault("a person's test records all counted", "data.split", plants.every_record_of_a_test_person_counts, called(people_apart.test_nobody_is_in_two_parts_and_a_test_person_has_one_record)),
    Fault("people are numbered by position", "data.people", plants.people_numbered_by_position, called(people_apart.test_a_number_and_a_place_follow_from_the_own_identifier)),
    Fault("cells of a list take one type", "data.memory", plants.cells_of_a_list_take_one_type, called(in_memory.test_a_cell_of_a_list_does_not_change_the_type_of_the_others, "x")),
    Fault("numbers in a column of dates are days", "data.memory", plants.numbers_in_a_column_of_dates_are_days, called(in_memory.test_dates_and_labels_keep_their_meaning_beside_a_strange_cell, "what?")),
    Fault("identifiers are rounded", "data.memory", plants.identifiers_are_rounded, called(in_memory.test_an_identifier_that_a_fraction_does_not_hold_is_none_in_any_type)),
    Fault("items share their chance", "private_training", plants.items_share_their_chance, called(of_modules.test_a_random_transform_does_the_same_to_an_item_whoever_comes_before_it)),
    Fault("texts are cut to the shortest of their block", "data.text", plants.texts_cut_to_the_shortest_of_their_block, called(of_texts.test_what_a_text_becomes_depends_on_it_alone)),
    Fault("a text that cannot be encoded stops the load", "data.text", plants.a_text_that_cannot_be_encoded_stops_the_load, called(of_texts.test_a_text_that_the_tokenizer_cannot_encode_leaves_its_record_out)),
    Fault("a tokenizer that draws random numbers", "data.text", plants.tokenizers_may_draw_random_numbers, called(of_texts.test_a_tokenizer_that_draws_random_numbers_is_refused)),
    Fault("a network is tried in the lengths that occur", "per_sample.engine", plants.networks_tried_in_the_lengths_that_occur, with_folder(of_transformers.whether_a_network_is_refused_follows_from_no_record)),
    Fault("what a record's position does is not looked at", "per_sample.self_check", plants.positions_not_looked_at, called(of_self_check.care_is_taken_where_positions_matter)),
    Fault("what was tried with care is summed without", "per_sample.engine", plants.tried_with_care_and_summed_without, called(of_self_check.care_is_taken_where_positions_matter)),
    Fault("half the noise on the comparison with public records alone", "methods.floor", plants.half_the_noise_on_the_floor, called(test_floor.the_count_has_the_noise_that_is_accounted_for)),
    Fault("every record of a person counts in the comparison", "methods.floor", plants.every_record_of_a_person_counts_for_the_floor, called(test_floor.one_record_moves_the_count_by_at_most_one)),
    Fault("gradients of standardised filters are not mapped back", "nets.wide_resnet", plants.filters_not_mapped_back, called(test_wide_resnet.standardised_layers_are_book_kept)),
    Fault("rows of text are cut to the shortest of the batch", "nets.domain", plants.rows_of_text_cut_to_the_shortest, called(test_bert.test_rows_are_grouped_by_their_own_length_alone)),
    Fault("identifiers rounded where one is missing", "data.memory", plants.identifiers_as_numpy_has_them, called(in_memory.test_whose_a_record_is_does_not_depend_on_a_cell_that_is_missing, "polars")),
    Fault("the record of nobody is another's", "data.memory", plants.identifiers_as_numpy_has_them, called(in_memory.test_whose_a_record_is_does_not_depend_on_a_cell_that_is_missing, "Arrow, a dictionary")),
    Fault("class weights above 1, after clipping", "class_weights", plants.class_weights_above_one, called(of_weights.one_record_counts_by_its_weight_and_at_most_once)),
    Fault("a head whose sensitivity forgets the largest class weight", "class_weights", plants.class_weights_above_one, called(weighted.a_heavy_record_moves_the_head_by_no_more_than_its_sensitivity)),
    Fault("head weights ignored", "Records", plants.records_weigh_one_each, court_of_people("answers/head", 500)),
    Fault("weights/head: every record's features count", "Records", plants.records_weigh_one_each, court_of_people("weights/head", 300)),
    Fault("per-query: head weights ignored", "Records", plants.records_weigh_one_each, court_of_people("answers/per-query", 500)),
    # weights
    Fault("shaped: isotropic clipping", "private", plants.isotropic_clipping, SHAPED),
    _long("shaped: noise over 2", "GaussianNoise", plants.noise_over(2.0), SHAPED),
    _long("head: noise over 2", "GaussianNoise", plants.noise_over(2.0), HEAD),
    Fault("head: no clipping", "Clip", plants.no_clipping, HEAD),
    Fault("head: the mean has no noise", "weights.head", plants.the_first_release_has_no_noise, HEAD),
    Fault("head: a table's counts have no noise", "weights.head", plants.the_first_release_has_no_noise, TABLE),
    Fault("head: the noise of one number's counts on those of all", "weights.head", plants.counts_as_if_of_one_number, TABLE),
    Fault("head: a table's steps have half of their noise", "GaussianNoise", plants.noise_over(2.0), TABLE),
    _made_up("head: the mean is not counted", "weights.head", plants.the_mean_is_not_counted, called(TestHead.test_the_event_is_the_mean_and_every_step)),
    # twin
    _long("sharded: noise over 2", "GaussianNoise", plants.noise_over(2.0), SHARDED),
    Fault("sharded: no clipping", "aggregate", plants.vectors_not_clipped, SHARDED),
    _long("sharded: a record in two shards", "twin.sharded", plants.a_record_in_two_shards, SHARDED),
    Fault("sharded: by content though people are declared", "data.split", plants.people_are_sharded_by_content, court_of_people("twin/sharded", 150)),
    Fault("sharded, a number: no clipping", "aggregate", plants.vectors_not_clipped, court_of_numbers("twin/sharded", 2000)),
    _long("sharded, a number: noise over 4", "GaussianNoise", plants.noise_over(4.0), court_of_numbers("twin/sharded", 2000)),
    Fault("kde-sharded: by content though people are declared", "data.split", plants.people_are_sharded_by_content, court_of_people("twin/kde-sharded", 150)),
    Fault("kde-sharded: the paper's sensitivity", "ShardDensity", plants.published_sensitivity, DENSITY),
    Fault("kde-sharded: no chance in every other coordinate", "ShardDensity", plants.no_chance_in_every_other_coordinate, called(test_aggregate.test_points_are_drawn_with_their_probabilities)),
    # student
    _long("ensemble: noise over 2", "GaussianNoise", plants.noise_over(2.0), ENSEMBLE),
    Fault("ensemble: no clipping", "aggregate", plants.vectors_not_clipped, ENSEMBLE),
    Fault("ensemble, a number: no clipping", "aggregate", plants.vectors_not_clipped, court_of_numbers("student/ensemble", 2000)),
    _long("ensemble, a number: noise over 4", "GaussianNoise", plants.noise_over(4.0), court_of_numbers("student/ensemble", 2000)),
    _long("ensemble: a record with two teachers", "student.ensemble", plants.a_record_with_two_teachers, ENSEMBLE),
    _long("ensemble: every teacher sees the next shard", "student.teachers", plants.every_teacher_sees_the_next_shard, ENSEMBLE),
    Fault("ensemble: votes without noise", "ShardVotes", plants.votes_without_noise, VOTES),
    Fault("ensemble: a look without noise", "SureVotes", plants.a_look_without_noise, called(of_ensemble.test_the_look_before_votes_has_noise_of_its_own_size)),
    _long("neighbours: noise over 2 (student)", "GaussianNoise", plants.noise_over(2.0), TAUGHT_BY_NEAR),
    Fault("neighbours: a record votes in two cells (student)", "student.neighbours", plants.a_record_labels_two_cells, called(of_near_student.one_record_moves_the_votes_by_at_most_one)),
    Fault("neighbours: ties between cells go by a record's place", "training.neighbours", plants.ties_between_cells_go_by_a_records_place, called(of_cells.test_a_record_has_its_cell_wherever_it_stands)),
    Fault("neighbours: every record of a person votes (student)", "student.neighbours", plants.every_record_of_a_person_labels, court_of_people("student/neighbours", 400)),
    _long("private-teacher: noise over 2", "GaussianNoise", plants.noise_over(2.0), TEACHER),
    Fault("private-teacher: no clipping", "Clip", plants.no_clipping, TEACHER),
    # features
    _long("noised: noise over 2", "GaussianNoise", plants.noise_over(2.0), NOISED),
    Fault("noised: rows not clipped", "LocalGaussian", plants.rows_not_clipped, NOISED),
    _long("noised: a replaced record taken for one more or less", "LocalGaussian", plants.records_taken_for_half_as_far_apart, NOISED),
    Fault("noised: rows share their noise", "LocalGaussian", plants.rows_share_their_noise, called(checks.every_row_has_noise_of_its_own)),
    Fault("noised: as many rows as records", "methods.rows", plants.as_many_rows_as_records, NOISED),
    Fault("noised: as many rows as records, in a release", "methods.rows", plants.as_many_rows_as_records, called(feature_rows.as_many_as_declared)),
    Fault("noised: rows in the order of the file", "methods.rows", plants.rows_in_the_order_of_the_file, called(feature_rows.any_order_is_as_likely)),
    Fault("noised: rows of nobody at the end", "methods.rows", plants.anybody_is_left_out, called(feature_rows.any_order_is_as_likely)),
    Fault("noised: who is left out follows from their number", "methods.rows", plants.anybody_is_left_out, called(feature_rows.many_records_changed)),
    Fault("noised: noise for one row of a person", "LocalGaussian", plants.one_row_of_a_person_is_hidden, NOISED_PERSON),
    Fault("noised: every record of a person takes a row", "methods.rows", plants.every_record_of_a_person_takes_a_row, NOISED_PERSON),
    Fault("the same, by their number", "methods.rows", plants.every_record_of_a_person_takes_a_row, called(feature_rows.nobody_has_more_rows_than_declared)),
    Fault("noised: rows of a person not clipped", "LocalGaussian", plants.rows_not_clipped, NOISED_PERSON),
    Fault("noised: which rows of a person leave follows from others", "methods.rows", plants.which_rows_are_hers_follows_from_the_others, called(feature_rows.a_person_of_many_records_changed)),
    _made_up("noised: the labels of a person are paid for as one", "features.noised", plants.labels_of_a_person_cost_as_one, called(of_noised.labels_of_a_person_are_paid_for)),
    # answers
    Fault("head: noise over 2 (answers)", "GaussianNoise", plants.noise_over(2.0), ANSWERS),
    _long("head: longer features (answers)", "convex", plants.longer_features, ANSWERS),
    Fault("head: a mean over the real number of records (answers)", "convex", plants.mean_over_the_real_number, ANSWERS),
    Fault("per-query: noise over 2", "GridNoise", plants.grid_noise_over(2), PER_QUERY),
    Fault("per-query: longer features", "convex", plants.longer_features, PER_QUERY),
    Fault("per-query: noise re-used in a call", "GridNoise", plants.one_noise_for_all_rows, sold(charging.answers_have_noise_of_their_own, "answers/per-query")),
    Fault("per-query: noise re-used in a session", "serve.answer_handler", plants.all_requests_share_their_noise, sold(charging.answers_have_noise_of_their_own, "answers/per-query")),
    _long("votes: noise over 2", "GridNoise", plants.grid_noise_over(2), ANSWER_VOTES),
    _long("votes: a record in two shards", "answers.votes", plants.a_vote_in_two_shards, ANSWER_VOTES),
    _long("neighbours: noise over 2 (answers)", "ExponentialMechanism", plants.grid_noise_over(2), NEIGHBOURS),
    _long("neighbours: a record votes in two cells (answers)", "answers.neighbours", plants.a_record_votes_in_two_cells, NEIGHBOURS),
    Fault("neighbours: every record of a person votes (answers)", "answers.neighbours", plants.every_record_of_a_person_votes, court_of_people("answers/neighbours", 400)),
    # A network of the user's own
    _long("views of a record are clipped one by one", "private", plants.views_are_clipped_alone, court_of_config("multi_crop", 400)),
    _long("records meet in a batch, now and then", "private", plants.records_meet_in_a_batch, court_of_config("gated", 400)),
    # The card
    Fault("counts on the card: half the noise", "NoisyCounts", plants.half_the_noise_on_counts, called(test_counts.test_the_noise_is_two_sided_geometric, 1.0)),
    Fault("counts on the card: no noise", "NoisyCounts", plants.no_noise_on_counts, called(test_evaluation.test_noise_of_the_stated_size_is_believed)),
    Fault("a target outside its range is not clamped", "data.tables", plants.a_target_is_not_clamped, called(test_tables.test_targets_are_steps_of_their_declared_range)),
    Fault("errors on the card: one record adds without bound", "audit.regression_errors", plants.an_error_is_not_bounded, called(test_regression_errors.test_one_record_moves_each_table_by_one_unit_whatever_its_target_is)),
    Fault("errors on the card: half the noise", "audit.two_tables", plants.half_the_noise_on_two_tables, called(test_regression_errors.test_noise_has_the_scale_that_is_accounted_for)),
    Fault("perplexity on the card: one text adds without bound", "audit.perplexity", plants.a_loss_is_not_bounded, called(test_perplexity.test_one_text_moves_each_table_by_one_unit_whatever_its_losses_are)),
    Fault("perplexity on the card: half the noise", "audit.two_tables", plants.half_the_noise_on_two_tables, called(test_perplexity.test_noise_has_the_scale_that_is_accounted_for)),
    Fault("answers, regression: a residual is not clamped", "HuberHead", plants.a_residual_is_not_clamped, called(test_convex.test_one_record_moves_a_regression_by_no_more_than_the_sensitivity)),
    Fault("counts on the card: tables cost twice what is stated", "audit.evaluation", plants.tables_cost_twice_what_is_stated, called(test_evaluation.test_shares_add_up_and_the_event_is_theirs, True)),
    # What is paid
    Fault("votes never charges", "answers.answerer", plants.votes_never_charges, sold(CHARGED, "answers/votes")),
    Fault("neighbours never charge", "answers.answerer", plants.neighbours_never_charge, sold(CHARGED, "answers/neighbours")),
    Fault("per-query never charges", "answers.answerer", plants.per_query_never_charges, sold(CHARGED, "answers/per-query")),
    Fault("a request is charged as one row", "serve.answer_handler", plants.a_request_is_charged_as_one_row, sold(CHARGED, "answers/votes")),
    Fault("charged after the answer", "serve.answer_handler", plants.charged_after_the_answer, sold(CHARGED, "answers/votes")),
    Fault("an answer serves every client", "serve.answer_handler", plants.an_answer_serves_every_client, sold(CHARGED, "answers/votes")),
    Fault("the budget has no end", "ledger.transaction", plants.the_budget_has_no_end, sold(CHARGED, "answers/per-query")),
    Fault("a walk skips the totals", "ledger.verify", plants.a_walk_skips_the_totals, with_folder(ledger_checks.totals_set_back_are_refused)),
    Fault("the hashes of the log have no key", "ledger.chain", plants.the_hashes_have_no_key, with_folder(ledger_checks.forged_hashes_are_refused)),
    Fault("the table of keys lets in", "ledger.keys", plants.the_table_of_keys_lets_in, with_folder(ledger_checks.a_planted_key_opens_nothing)),
    Fault("the ledger's clock goes back", "ledger.keys", plants.the_clock_goes_back, with_folder(ledger_checks.an_expired_key_stays_expired)),
    Fault("an uncertain charge is handed out twice", "ledger.transaction", plants.an_uncertain_charge_is_handed_out_twice, with_folder(ledger_checks.an_uncertain_charge_is_handed_out_once)),
    Fault("a reservation can be answered again", "answers.answerer", plants.a_reservation_can_be_answered_again, sold(charging.a_reservation_is_answered_once, "answers/votes")),
    # Bundles, and the service that opens them
    Fault("a plan is not compared", "bundle.replan", plants.a_plan_is_not_compared, _forged("events")),
    Fault("the figures of a plan are not compared", "bundle.replan", plants.the_figures_of_a_plan_are_not_compared, _forged("steps")),
    Fault("the data of a plan are not compared", "bundle.replan", plants.the_data_of_a_plan_are_not_compared, _forged("records")),
    Fault("a required signature is not required", "signing.keys", plants.a_required_signature_is_not_required, of_a_bundle(of_signatures.test_an_unsigned_bundle_says_so_first_and_fails_only_where_a_key_is_required)),
    Fault("any known key will do", "signing.keys", plants.any_known_key_will_do, of_a_bundle(of_signatures.test_the_first_line_says_who_signed)),
    Fault("a signature is not checked", "signing.envelope", plants.a_signature_is_not_checked, of_a_bundle(of_signatures.test_an_edited_decision_or_another_key_under_a_known_name_is_a_forgery)),
    Fault("signed files are not compared", "signing.signatures", plants.signed_files_are_not_compared, of_a_bundle(of_signatures.test_a_changed_file_is_named_even_by_those_who_do_not_know_the_key, "card.json", name="card.json")),
    Fault("a rejected bundle is served", "bundle.answering", plants.a_rejection_is_passed_over, of_a_bundle(test_approval.test_a_rejected_bundle_is_never_served_and_passes_no_gate)),
    Fault("a bundle is served unverified", "bundle.answering", plants.a_bundle_is_opened_unverified, of_a_bundle(test_answering.test_a_bundle_that_does_not_verify_answers_nothing)),
    Fault("the interface is the bundle's, not the vault's", "bundle.answering", plants.the_interface_is_the_bundles, of_a_bundle(test_answering.test_what_answers_comes_from_the_vaults_record)),
    Fault("the vault's record is passed over", "bundle.verify", plants.the_vaults_record_is_passed_over, of_a_bundle(test_answering.test_every_other_file_of_a_bundle_is_the_vaults_too)),
    Fault("records are not compared on resume", "bundle.vault", plants.records_are_not_compared_on_resume, of_a_bundle(test_pipeline.test_a_run_goes_on_with_its_own_records_alone)),
    Fault("a checkpoint is not emptied", "bundle.vault", plants.a_checkpoint_is_not_emptied, of_a_bundle(test_pipeline.test_a_new_start_leaves_nothing_of_other_records)),
    Fault("an ONNX file is not compared", "bundle.models", plants.an_onnx_file_is_not_compared, of_a_bundle(test_models.test_a_field_that_onnx_does_not_know_is_found)),
    Fault("a file may change after its verification", "bundle.contents", plants.a_file_may_change_after_its_verification, of_a_bundle(test_swapped.test_what_is_used_is_what_was_verified, "read", name="card.json", use=read_verified)),
    Fault("what a bundle names is imported", "plugins", plants.what_a_bundle_names_is_imported, of_a_bundle(test_strangers.test_what_a_config_leads_to_is_found_wherever_it_stands)),
    # The policy of a house
    Fault("policy: epsilon has no limit", "policy.rules", plants.a_rule_is_skipped("privacy_parameters.epsilon"), POLICY),
    Fault("policy: no unit is asked for", "policy.rules", plants.a_rule_is_skipped("unit_of_privacy.units"), POLICY),
    Fault("policy: no attack is required", "policy.rules", plants.a_rule_is_skipped("algorithms_and_correctness.required_attacks"), POLICY),
    Fault("policy: anybody may sign", "policy.rules", plants.a_rule_is_skipped("access_control.signers"), POLICY),
    Fault("policy: what was not seen is kept", "policy.rules", plants.what_was_not_seen_is_kept, POLICY),
    Fault("policy: a fingerprint is taken at its word", "policy.rules", plants.a_fingerprint_is_taken_at_its_word, POLICY),
    # What is counted in a register
    Fault("charged after the records were read", "bundle.booking", plants.charged_after_reading, with_folder(of_register.charged_before_the_first_record_is_read)),
    Fault("a release's cost is rounded down", "accounting.privacy_filter", plants.a_cost_is_rounded_down, called(test_privacy_filter.cost_is_never_below_the_divergence)),
    Fault("a run that has read is given back", "ledger.reservations", plants.a_run_that_reads_is_given_back, with_folder(test_register.nothing_is_returned_after_reading_started)),
    Fault("a resumed run draws new noise for nothing", "bundle.booking", plants.a_resumed_run_draws_anew_for_nothing, with_folder(of_register.a_resumed_run_draws_the_same_noise_or_pays_again)),
    # One run
    _long("one run: no noise", "GaussianNoise", plants.no_noise, one_run("weights/gaussian")),
    _long("one run: noise over 10", "GaussianNoise", plants.noise_over(10.0), one_run("weights/gaussian")),
    _long("one run: noise over 2", "GaussianNoise", plants.noise_over(2.0), one_run("weights/gaussian", count=4000)),
    _long("one run: no clipping", "Clip", plants.no_clipping, one_run("weights/gaussian")),
    _long("one run: shaped, noise over 10", "GaussianNoise", plants.noise_over(10.0), one_run("weights/shaped")),
    _long("one run: head, no noise", "GaussianNoise", plants.no_noise, one_run("weights/head")),
    _long("one run: head, noise over 10", "GaussianNoise", plants.noise_over(10.0), one_run("weights/head")),
    _long("one run: head, no clipping", "Clip", plants.no_clipping, one_run("weights/head")),
    Fault("one run: sharded, no noise", "GaussianNoise", plants.no_noise, one_run("twin/sharded")),
    Fault("one run: sharded, noise over 10", "GaussianNoise", plants.noise_over(10.0), one_run("twin/sharded")),
    Fault("one run: answers, no noise", "GaussianNoise", plants.no_noise, one_run("answers/head")),
    _long("one run: records of a person clipped one by one", "per_sample.engine", plants.records_of_a_person_clipped_one_by_one, one_run("weights/gaussian", people=True)),
    _long("one run: shaped, records of a person clipped one by one", "per_sample.engine", plants.records_of_a_person_clipped_one_by_one, one_run("weights/shaped", people=True)),
    _long("one run: head, records of a person clipped one by one", "per_sample.engine", plants.records_of_a_person_clipped_one_by_one, one_run("weights/head", people=True)),
    _long("one run: head, every record's features count", "Records", plants.records_weigh_one_each, one_run("weights/head", people=True)),
    _long("one run: private-teacher, records of a person clipped one by one", "per_sample.engine", plants.records_of_a_person_clipped_one_by_one, one_run("student/private-teacher", people=True)),
    Fault("one run: shards by content though people are declared", "data.split", plants.people_are_sharded_by_content, one_run("twin/sharded", people=True, count=1000)),
    Fault("one run: per-query, noise over 20", "GridNoise", plants.grid_noise_over(20), one_run("answers/per-query")),
    Fault("one run: per-query, every record counts", "Records", plants.records_weigh_one_each, one_run("answers/per-query", people=True)),
    _long("one run: ensemble, noise over 10", "GaussianNoise", plants.noise_over(10.0), one_run("student/ensemble", count=100)),
    _long("worst case: noise over 10", "GaussianNoise", plants.noise_over(10.0), called(of_worst_case.all_bounds_hold, long=True)),
    Fault("one run: answers, head weights ignored", "Records", plants.records_weigh_one_each, one_run("answers/head", people=True, count=1000)),
    Fault("one run: answers, noise over 20", "GaussianNoise", plants.noise_over(20.0), one_run("answers/head")),
)
# fmt: on
CATCHERS = tuple(dict.fromkeys(fault.caught_by for fault in FAULTS))
