"""Which tests `-m "not slow"` leaves out, so that the rest takes less than a minute on two cores.

Slow is what needs a browser, or a fixture that takes seconds. Slow are all but the first ten of a
test's numbered cases, which are random problems. And slow are the tests of the table: all their cases
together take 0.7 s or more, as `pytest --durations=0` says. Its numbers are how many cases, the first
ones, stay in the fast subset: as many as half a second holds. So every method still meets some random
problems, and every file keeps some quick test, but for those of the browser, the server and mypy.
"""

FIXTURES = {"installed", "ledger"}  # a wheel, built and unpacked; every claim, computed
RANDOM_PROBLEMS = 10

SLOW = {
    "tests/test_sensitivity.py": {
        "test_a_plan_loses_what_it_loses_against_all_placements": 3,
        "test_a_plan_of_ones_own_is_compared_with_the_best": 0,
    },
    "tests/test_definitions_placement.py": {
        "test_counting_is_the_aggregated_optimum_or_a_refusal": 0,
        "test_candidates_are_the_engines": 0,
        "test_the_joint_ilp_proves_what_trying_everything_finds": 0,
        "test_the_exact_splits_are_the_best_of_all": 1,
    },
    "tests/test_calibration.py": {
        "test_a_gpu_type_or_source_is_predicted_from_the_others": 0,
        "test_shipped_constants_are_near_what_the_bundled_rows_fit": 0,
    },
    "pipelab/io/jsonschema_import.py": {
        "pipelab.io.jsonschema_import.build_iri_grammar_when_asked": 0,
    },
    "tests/test_aggregated.py": {
        "test_mixtures_too_many_to_list_leave_a_valid_bound": 4,
        "test_the_trade_off_is_the_pareto_front": 2,
        "test_a_rate_left_open_makes_the_search_ask_for_any_placement": 0,
        "test_among_equals_fewest_gpus_then_stages_then_lowest_price": 2,
        "test_equal_to_the_joint_ilp_beyond_brute_force": 2,
        "test_the_write_ups_cases": 3,
        "test_easier_questions_never_say_no_to_what_exists": 1,
        "test_a_certificate_never_rests_on_mixtures_left_out": 3,
        "test_certificates_of_the_cases": 2,
        "test_questions_left_open_do_not_lower_the_bound": 1,
        "test_easier_questions_first_change_no_answer": 4,
        "test_equal_to_brute_force": 4,
        "test_sizes_with_gaps_and_any_cost_model": 4,
        "test_every_proven_answer_has_a_certificate": 4,
    },
    "tests/test_cli.py": {
        "test_doctor_lets_every_solver_solve_tiny": 0,
        "test_solve_prints_the_placement": 0,
        "test_notebooks_are_copied_and_nothing_is_overwritten": 0,
        "test_json_is_for_programs": 0,
        "test_rules_can_be_set": 0,
        "test_a_large_case_is_answered_without_naming_a_method": 0,
        "test_count_is_exact_and_instant": 0,
        "test_output_survives_a_terminal_of_another_code_page": 0,
        "test_doctor_tells_a_solver_that_does_not_answer": 0,
        "test_solve_prints_links_too": 0,
        "test_cases_are_listed": 0,
        "test_what_is_refused_is_one_sentence_and_status_2": 0,
        "test_a_folder_works_in_place_of_a_case": 0,
        "test_no_placement_is_exit_status_1": 0,
        "test_a_plan_goes_to_a_file_and_from_there_to_an_engine": 0,
        "test_settings_of_a_case_without_a_placement_are_exit_status_1": 0,
    },
    "tests/test_costs.py": {
        "test_one_stage_and_many_stages_agree": 0,
        "test_a_model_of_ones_own_is_asked_for_every_layers_work": 2,
    },
    "tests/test_course.py": {
        "test_the_map_counts_the_minutes_that_the_notebooks_say": 0,
    },
    "tests/test_deadline.py": {
        "test_tables_that_are_not_finished_leave_a_proven_bound": 0,
        "test_stops_at_random_moments_end_a_search_at_once": 0,
        "test_the_bound_that_is_there_at_once_holds_for_every_placement": 0,
        "test_importing_a_method_counts_in_its_time_limit": 0,
        "test_a_stop_among_the_tables_is_heeded_and_a_placement_is_kept": 0,
        "test_tables_that_take_minutes_are_ended_in_time_and_a_placement_is_there_before": 0,
        "test_ctrl_c_among_the_tables_is_heeded_and_a_placement_is_kept": 0,
        "test_whatever_is_listed_looks_at_the_deadline_all_the_time": 1,
    },
    "tests/test_exercises.py": {
        "test_families_of_constraints_are_right_or_told_the_smallest_problem": 0,
        "test_a_mix_of_gpus_must_be_a_counterexample_and_none_may_be_smaller": 0,
        "test_a_drawn_cut_says_what_its_slowest_gpu_takes": 0,
        "test_every_mistake_is_told_apart": 2,
        "test_the_answer_is_right_and_what_is_near_it_is_not": 2,
        "test_none_is_an_answer_where_a_reader_arrives_at_it": 0,
        "test_a_wrong_answer_does_not_give_the_right_one_away": 0,
        "test_rows_are_right_or_told_the_smallest_program_that_they_spoil": 0,
        "test_the_count_behind_that_exercise_is_the_heuristic": 0,
        "test_a_function_is_right_or_told_the_smallest_input_on_which_it_is_not": 1,
    },
    "tests/test_explore_mix.py": {
        "test_the_chart_has_the_same_traces_whatever_the_values": 0,
        "test_at_rest_is_only_who_has_shown_everything": 0,
        "test_what_takes_longer_says_so_and_only_the_newest_answer_arrives": 0,
        "test_one_more_of_a_type_that_the_cost_model_does_not_know_is_not_asked_for": 0,
        "test_the_numbers_are_those_of_solve_and_the_code_makes_the_same": 4,
    },
    "tests/test_export.py": {
        "test_a_plan_loaded_for_its_problem_has_the_rate_that_was_saved": 0,
        "test_placements_come_back_from_their_files": 0,
        "test_the_writeups_own_fields": 0,
        "test_a_score_says_how_far_from_the_proven_optimum": 0,
    },
    "tests/test_files.py": {
        "test_a_reader_who_leaves_early_hears_nothing": 0,
        "test_a_full_standard_output_is_one_sentence": 0,
        "test_a_folder_whose_name_is_no_text_is_no_obstacle": 0,
        "test_a_closed_standard_output_is_no_traceback": 0,
        "test_odd_names_are_one_sentence": 1,
    },
    "tests/test_fuzzing.py": {
        "test_a_spoilt_schedule_is_run_or_refused": 0,
        "test_a_spoilt_file_is_read_whole_or_refused": 0,
        "test_a_spoilt_placement_in_json_is_read_whole_or_refused": 0,
        "test_a_spoilt_plan_in_json_is_for_its_problem_or_refused": 0,
    },
    "tests/test_in_flight.py": {
        "test_the_random_problems_ask_for_something": 0,
        "test_ended_early_the_bound_holds": 0,
        "test_it_is_the_most_of_all_placements_with_all_numbers_in_flight": 3,
        "test_where_memory_does_not_depend_on_it_the_prediction_holds": 3,
        "test_what_bounds_many_numbers_is_no_better_with_more_in_flight": 2,
    },
    "tests/test_iri_grammar.py": {
        "test_iris_are_checked_as_ever": 0,
        "test_a_figure_is_shown_without_it": 0,
    },
    "tests/test_joint.py": {
        "test_both_forms_and_brute_force_agree": 4,
        "test_small_with_one_gpu_per_stage": 0,
        "test_the_random_problems_are_worth_solving": 0,
        "test_the_write_ups_m_proves_220_where_301_784_is_right": 0,
        "test_a_bound_of_scip_that_is_refuted_is_dropped": 0,
        "test_tiny": 3,
        "test_what_a_faulty_m_proved_never_becomes_a_bound": 0,
    },
    "tests/test_ledger.py": {
        "test_the_command_ends_in_1_when_a_verdict_changes": 0,
        "test_the_command_writes_files_and_standard_output": 0,
    },
    "tests/test_ledger_rows.py": {
        "test_every_document_has_an_address": 0,
    },
    "tests/test_measured.py": {
        "test_over_a_roofline_in_decode_it_is_solved_like_any_other": 0,
        "test_solved_like_any_other": 1,
    },
    "tests/test_methods.py": {
        "test_medium_without_the_restrictions": 0,
        "test_a_comparison_is_one_table_and_one_figure": 0,
        "test_every_method_returns_one_kind_of_answer": 0,
        "test_an_interrupt_ends_a_comparison_and_keeps_what_there_is": 0,
        "test_the_original_milp": 2,
        "test_the_original_milp_equals_brute_force": 4,
        "test_the_run_of_its_author_is_asked_about_segments_that_fit_where_scip_sees_no_rates": 4,
        "test_the_original_milp_with_rates_over_thirty_orders_of_magnitude": 4,
    },
    "tests/test_notebooks.py": {
        "test_solution": 0,
        "test_notebook": 2,
    },
    "tests/test_numbers.py": {
        "test_other_objectives_and_proofs": 0,
        "test_answers_of_every_method": 0,
    },
    "tests/test_objectives.py": {
        "test_prices_of_millionths_of_a_dollar_are_told_apart": 2,
        "test_a_front_that_is_ended_early_keeps_its_points": 0,
        "test_the_cheapest_is_the_cheapest_of_all": 4,
        "test_circuits_apart_from_the_pipeline_are_no_placement": 0,
        "test_a_stop_keeps_what_was_found": 0,
        "test_the_quickest_knows_the_latency_of_every_link": 4,
        "test_counting_and_path_agree_beyond_brute_force": 1,
        "test_the_figures_state_what_they_show": 0,
        "test_the_quickest_is_the_quickest_of_all": 4,
        "test_the_fronts_are_the_pareto_fronts": 4,
        "test_mixtures_too_many_to_list_are_not_blamed_on_the_time": 1,
        "test_an_interrupt_between_two_questions_loses_nothing": 2,
        "test_links_that_are_practically_absent_are_not_taken": 3,
        "test_a_program_ended_by_time_says_how_far_off_it_may_be": 0,
    },
    "tests/test_outcome.py": {
        "test_no_name_is_taken_for_html": 0,
        "test_what_is_proven_for_one_gpu_per_stage_is_proven_and_says_for_what": 0,
    },
    "tests/test_packaging.py": {
        "test_the_python_of_the_tour_runs_and_says_what_it_says": 0,
        "test_notebooks_are_stored_without_outputs": 0,
        "test_a_wheel_stands_alone": 0,
        "test_every_public_name_has_a_reader": 0,
        "test_an_installed_pipelab_copies_its_notebooks_and_overwrites_nothing": 0,
    },
    "tests/test_placed_timeline.py": {
        "test_waits_behind_lanes_delay_and_keep_no_other_from_the_lane": 0,
        "test_random_placements_keep_the_judges_promise": 0,
        "test_the_full_pipelines_rate_is_the_lesser_of_the_slowest_lane_and_the_latency": 0,
        "test_the_fewest_in_flight_are_the_fewest": 0,
        "test_every_pass_ends_when_the_event_simulator_says": 1,
        "test_every_bundled_case_keeps_its_promise": 6,
    },
    "tests/test_plots.py": {
        "test_leaving_out_exclusivity_is_found_out_by_the_judge": 0,
    },
    "tests/test_problem.py": {
        "test_a_result_says_when_links_count_transfers": 0,
    },
    "tests/test_refusals.py": {
        "test_prices_in_cents_over_a_thousand_gpus_are_no_obstacle": 0,
    },
    "tests/test_refutation.py": {
        "test_a_refutation_is_found_just_where_there_is_no_solution": 0,
        "test_certificates_where_every_layer_differs": 4,
        "test_cases_never_rest_on_mixtures_left_out": 0,
        "test_cases_of_one_rate_do_not_prove_another": 6,
    },
    "tests/test_roofline.py": {
        "test_a_report_says_which_stages_cut_their_layers": 0,
        "test_certificates_of_models_whose_ends_differ": 4,
        "test_every_stage_is_what_the_formulas_say": 4,
        "test_ends_alone_differ_and_links_bind": 4,
        "test_cheapest_and_quickest_equal_brute_force": 4,
        "test_aggregated_equals_brute_force": 4,
    },
    "tests/test_schedules.py": {
        "test_one_high_number_is_answered_at_once": 0,
    },
    "tests/test_server.py": {
        "test_the_server_is_for_this_machine_and_asks_for_its_token": 0,
        "test_another_address_is_taken_when_asked_for": 0,
    },
    "tests/test_settings.py": {
        "test_every_engine_reads_back_the_cuts_of_1000_random_plans": 0,
    },
    "tests/test_solving.py": {
        "test_an_interrupt_while_waiting_leaves_the_background_solve_alone": 0,
        "test_a_gap_limit_is_kept_and_said": 0,
        "test_an_interrupt_ends_the_solve_and_keeps_the_answer": 0,
        "test_the_python_lock_is_free_while_scip_runs": 0,
        "test_a_time_limit_keeps_what_is_true": 0,
        "test_stop_ends_a_background_solve_and_keeps_its_incumbent": 0,
        "test_an_incumbent_is_reported_with_its_value_or_not_at_all": 0,
        "test_an_interrupt_between_two_questions_keeps_what_was_found": 1,
        "test_every_bundled_case_is_answered_at_once": 10,
    },
    "tests/test_splits.py": {
        "test_minmax_equals_trying_everything_at_the_edges_of_numbers": 0,
        "test_minmax_under_memory_limits_equals_trying_everything": 1,
        "test_minmax_equals_trying_everything": 0,
    },
    "tests/test_static.py": {
        "test_what_an_explorer_finds_later_is_on_the_page": 0,
        "test_links_of_all_pages_are_whole_and_nothing_comes_from_elsewhere": 0,
        "test_a_copy_is_written_whole_and_replaced_whole": 0,
        "test_nothing_is_written_where_a_notebook_fails": 0,
        "test_a_page_has_text_figures_and_links_to_the_pages_there_are": 0,
    },
    "tests/test_sweep.py": {
        "test_a_failed_point_is_a_row_with_its_reason": 0,
        "test_a_point_that_kills_its_worker_is_a_failed_row": 0,
        "test_a_sweep_that_is_killed_goes_on_where_it_stopped": 0,
        "test_workers_end_with_the_process_that_started_them": 0,
        "test_a_dask_cluster_takes_over_by_joblibs_switch": 0,
        "test_an_interrupted_sweep_goes_on_where_it_stopped": 0,
        "test_a_full_disk_loses_no_row_and_the_next_call_goes_on": 0,
        "test_two_processes_and_threads_say_the_same_in_the_same_order": 0,
        "test_a_torn_last_line_is_computed_again": 0,
        "test_the_file_of_another_sweep_is_refused": 1,
        "test_an_interrupt_while_a_row_is_written_is_no_different": 0,
        "test_every_plain_value_survives_the_file": 0,
    },
    "tests/test_timeline.py": {
        "test_blocking_equals_the_second_simulators_or_both_deadlock": 0,
        "test_the_lower_bound_is_never_above_a_simulation": 0,
        "test_closed_forms_equal_the_simulation_wherever_they_claim_to_hold": 0,
        "test_the_critical_path_is_a_chain_of_dependencies": 0,
        "test_what_was_waited_for_is_what_is_needed_and_ended_last": 0,
        "test_nothing_overlaps_no_dependency_breaks_and_no_work_is_lost": 0,
        "test_peak_memory_is_what_is_counted_along_every_ranks_order": 0,
        "test_gpipes_closed_form_holds_on_unequal_stages_and_links": 0,
        "test_rendezvous_equals_the_second_simulators_or_both_deadlock": 0,
        "test_transfers_that_wait_equal_the_second_simulators_where_messages_take_time": 0,
        "test_the_interleaved_column_comes_out_only_without_most_of_the_way_back": 4,
        "test_messages_that_are_shown_change_no_buffered_time": 0,
    },
    "tests/test_types.py": {
        "test_mypy_finds_nothing": 0,
    },
    "tests/test_different_layers.py": {
        "test_every_exact_method_knows_them": 4,
    },
    "tests/test_watch.py": {
        "test_stop_keeps_the_best_placement_and_says_how_far_off_it_may_be": 0,
    },
    "tests/test_definitions_schedules.py": {
        "test_times_of_random_schedules_are_the_engines": 0,
        "test_nothing_is_imported_upward": 1,
    },
    "tests/test_measurement_files.py": {
        "test_odd_json_is_read_or_refused": 0,
    },
    "pipelab/engine/speed_scenarios.py": {
        "pipelab.engine.speed_scenarios.sensitivity": 0,
    },
    "tests/test_model_config.py": {
        "test_a_strange_file_is_read_or_refused_in_one_sentence": 1,
    },
    "tests/test_what_fits.py": {
        "test_what_is_held_is_what_the_evaluator_lets_pass": 6,
    },
}
