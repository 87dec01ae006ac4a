//! The chapters of `docs/considerations.md`: each has all points of its pattern's source, with the way in which each is
//! met, and a test shows each point. Also the chapter "Guarantees" of each page.
use std::{fs, path::Path};

/// A point, identified by a part of its text, and the test that shows it. A point that is only advice has
/// [`ADVICE`] in place of a test.
type Point = (&'static str, &'static str);

const ADVICE: &str = "(advice)";

const CACHE_ASIDE: [Point; 8] = [
    ("The lifetime fits", "by_default_a_cached_value_lives_for_about_a_minute"),
    ("Eviction", "a_cache_stays_within_its_bound_and_what_is_heavy_counts_for_more"),
    ("Priming", "priming_a_cache_replaces_no_load_on_demand"),
    (
        "change behind the cache",
        "a_source_that_changes_behind_the_cache_is_served_stale_for_no_longer_than_the_time_to_live",
    ),
    ("A local cache is private", "a_backplane_that_fails_is_an_event"),
    ("The source is written first", "an_update_writes_the_source_first_and_invalidates_then"),
    ("A cache that fails", "a_cache_that_fails_fails_no_call"),
    ("What is absent", "an_absent_value_is_asked_for_again_by_default"),
];

const CIRCUIT_BREAKER: [Point; 13] = [
    ("must handle the rejection", "a_rejection_states_when_to_retry"),
    ("Kinds of fault differ", "a_breaker_weighs_kinds_of_failure_differently"),
    ("Failed calls are events", "failed_calls_and_state_transitions_are_events"),
    ("The open time fits", "the_open_time_grows_with_repeated_openings"),
    ("Recovery by a probe", "a_probe_detects_recovery"),
    ("Manual control", "a_breaker_can_be_operated_manually"),
    ("Many concurrent callers", "a_call_that_hangs_delays_none_of_ten_thousand_others"),
    ("One breaker per provider", "a_breaker_without_a_name_causes_a_warning"),
    ("not for some minutes", "an_announced_outage_opens_a_breaker_for_its_duration"),
    ("kept and replayed", "a_rejected_call_is_deferred_and_replayed_when_the_breaker_closes"),
    ("A long time-out", "calls_that_hang_open_a_breaker_with_a_time_out"),
    ("A retry around it", "a_retry_stops_at_the_rejection_of_a_breaker"),
    ("Every change of state", "failed_calls_and_state_transitions_are_events"),
];

const RETRY: [Point; 11] = [
    ("Interactive work", "presets_for_interactive_and_batch_work_differ"),
    ("An aggressive policy", "explain_warns_about_an_aggressive_retry"),
    ("After many failures", "explain_warns_about_an_aggressive_retry"),
    ("must be idempotent", "an_unmarked_charge_whose_answer_comes_too_late_is_sent_once"),
    ("The delay fits", "the_delay_fits_the_kind_of_failure"),
    ("Within a transaction", ADVICE),
    ("Nested retries multiply", "nested_retries_do_not_multiply"),
    ("Every fault that led to a retry", "every_retried_failure_is_an_event"),
    ("Rare faults", "a_rare_failure_can_be_retried_at_once"),
    ("Instances are spread apart", "instances_that_failed_together_retry_spread_over_the_whole_delay"),
    ("Test the failure paths", ADVICE),
];

const THROTTLING: [Point; 8] = [
    ("decided early", ADVICE),
    ("reacts and recovers fast", "a_limit_reacts_at_once_and_releases_fast"),
    ("A rejection is a specific error", "a_rejection_is_a_specific_error_with_a_retry_time"),
    ("A stop-gap", "a_raised_limit_admits_more_at_once"),
    ("If scaling costs more", ADVICE),
    ("keep a reserve", "limits_without_headroom_cause_a_warning"),
    ("Strategies", "less_important_work_is_given_up_first"),
    ("Metering per tenant", "each_tenant_has_its_own_rate"),
];

const LEADER_ELECTION: [Point; 8] = [
    ("Survives faults", "a_leader_outlives_a_fault_that_passes_and_another_leads_where_it_lasts"),
    ("How fast a dead leader", "a_dead_leader_is_followed_within_a_term_and_a_poll"),
    ("Scaling in", "a_leader_that_is_scaled_in_resigns_so_that_another_leads_soon"),
    ("single point of failure", "without_its_store_nobody_leads_and_each_failed_call_is_an_event"),
    ("A leader that stalls", "a_leader_that_stalls_is_ended_by_its_health_check_though_it_could_renew"),
    ("Which candidate wins", ADVICE),
    ("become the bottleneck", ADVICE),
    ("serves nothing else", "a_record_that_is_not_a_lease_is_refused_and_left_as_it_is"),
];

const SHARDING: [Point; 13] = [
    ("Balance", "a_shard_that_is_added_takes_its_share_from_all_others_and_no_more_moves"),
    ("The shard key is stable", "a_key_that_has_a_shard_is_given_no_other_by_naming_it_again"),
    ("Keys are unique", ADVICE),
    ("A query that the key does not fit", ADVICE),
    ("One shard a query", "what_is_asked_together_lies_together_by_the_first_part_of_its_key"),
    ("Fan-out", "a_fan_out_asks_all_shards_side_by_side_and_names_those_that_failed"),
    ("Copy reference data", ADVICE),
    ("eventual", ADVICE),
    ("Many shards to watch", "all_shards_and_all_chunks_can_be_listed"),
    ("Geography", "the_rows_of_a_region_lie_on_the_shard_near_its_users"),
    ("Which strategy", ADVICE),
    ("Moving", "ranges_move_by_splitting_and_merging_and_hashes_by_virtual_shards"),
    ("A hot tenant apart", "a_hot_tenant_is_named_by_the_meter_and_lies_apart_when_it_is_pinned"),
];

const QUEUE_LISTENER: [Point; 14] = [
    ("Batch what is sent", "messages_are_received_and_settled_in_batches"),
    ("An idle queue", "an_idle_queue_is_polled_by_one_task"),
    ("Scale in when empty", "tasks_are_scaled_out_by_depth_and_in_when_the_queue_stays_empty"),
    ("Randomised exponential back-off", "polls_of_an_empty_or_busy_queue_back_off_at_random"),
    ("limit of requests", "one_listener_takes_from_several_queues_where_one_has_a_limit"),
    ("Push for latency", "a_notice_wakes_an_idle_listener_at_once"),
    ("Handlers are idempotent", "a_message_that_comes_twice_is_handled_once_behind_the_filter"),
    ("A crashed consumer", "the_work_of_a_consumer_that_crashed_comes_back_and_nothing_accepted_is_lost"),
    ("Poison messages", "a_poison_message_is_set_aside_with_its_reason_and_the_others_are_handled"),
    ("correlation id", "an_answer_finds_its_question_by_a_correlation_id_on_a_reply_queue"),
    ("No accepted message is lost", "the_work_of_a_consumer_that_crashed_comes_back_and_nothing_accepted_is_lost"),
    ("Levelling", "a_limiter_in_the_handler_levels_a_peak_for_what_is_behind_it"),
    ("raise contention", "a_listener_without_a_limit_in_its_handler_is_warned_of_and_one_with_many_handlers_too"),
    ("Priorities", "the_higher_priority_goes_first_and_the_lowest_waits_for_a_bounded_time"),
];

const SAGA: [Point; 16] = [
    ("may block rather than fail", "an_attempt_is_repeated_after_growing_delays_and_ends_after_its_time_limit"),
    ("the application's", "a_compensation_gets_what_its_step_knew_and_decides_what_to_undo"),
    ("so they are idempotent", "a_step_that_is_not_idempotent_is_found_by_repetition"),
    ("may be lost", "a_saga_whose_process_crashes_at_any_request_ends_with_each_effect_once_or_none"),
    ("need not restore", ADVICE),
    ("the mirror's order", "steps_of_a_parallel_group_run_and_are_compensated_together_in_reverse_order"),
    ("Hold all resources shortly", ADVICE),
    ("Undoing costs more", "a_step_has_as_many_attempts_as_configured_and_refusals_are_none"),
    ("Others change the same data", ADVICE),
    ("recorded as it goes", "each_step_is_recorded_as_it_goes_with_how_it_is_undone"),
    ("continues from the point", "a_stuck_compensation_is_an_event_and_is_retried_or_skipped"),
    ("need a person", "a_stuck_compensation_is_an_event_and_is_retried_or_skipped"),
    ("run together", "steps_of_a_parallel_group_run_and_are_compensated_together_in_reverse_order"),
    ("need not undo the rest", "a_saga_that_waits_for_a_decision_goes_on_when_it_is_woken"),
    ("cancel afterwards", "a_completed_saga_is_cancelled_while_its_record_is_kept_and_none_past_its_pivot"),
    ("only where work must be undone", ADVICE),
];

const SCHEDULER: [Point; 15] = [
    ("Test every failure", "an_order_whose_process_crashes_at_any_request_ends_and_is_replied_to"),
    ("one record", "a_saga_whose_process_dies_goes_on_when_its_message_comes_back"),
    ("The supervisor's interval", "the_interval_of_a_supervisor_trades_requests_for_delay_as_its_table_says"),
    ("may run twice", "an_action_that_arrives_after_its_compensation_has_no_effect"),
    ("do not fight", "several_schedulers_and_supervisors_resume_a_lost_saga_once"),
    ("that is late", "an_agent_answers_while_its_caller_waits_and_says_nothing_after"),
    ("then an alarm", "a_saga_that_nothing_can_carry_on_is_cancelled_and_at_last_stuck"),
    ("restarts no process", "a_supervisor_that_knows_no_step_sends_one_message_and_does_nothing_else"),
    ("takes up what was in flight", "a_saga_whose_process_dies_goes_on_when_its_message_comes_back"),
    ("may be replicated", ADVICE),
    ("Claims are atomic", "an_executor_that_was_paused_writes_nothing_and_starts_no_step_after_another_took_over"),
    ("are written together", "the_rows_of_an_order_are_written_with_its_start"),
    ("in a state of its own", "a_saga_that_nothing_can_carry_on_is_cancelled_and_at_last_stuck"),
    ("private reply queue", "status_messages_come_in_order_with_their_correlation_id"),
    ("without remote calls", ADVICE),
];

const STREAM: [Point; 10] = [
    ("Buffer the events", "above_max_pending_an_append_is_full_at_once"),
    ("A stream is no queue", ADVICE),
    ("trades writes", "a_checkpoint_is_written_after_so_many_events_or_so_long"),
    ("One consumer for each partition", "ten_partitions_on_four_members_are_three_three_two_and_two"),
    ("keys run beside each other", "events_of_one_key_run_one_at_a_time_in_order_and_others_beside_them"),
    ("finished by itself", "a_checkpoint_never_passes_an_event_that_is_not_finished"),
    ("may run again", "an_event_that_runs_again_is_recognised_by_its_position_and_its_earlier_owner_is_fenced"),
    ("Back-pressure", "above_max_pending_an_append_is_full_at_once"),
    ("Failures differ", "an_event_that_kills_its_process_becomes_a_dead_letter_and_no_other_event_does"),
    ("raises an alarm", "work_that_fails_for_good_is_told_at_the_levels_of_warnings_and_errors"),
];

const EVENT_SOURCING: [Point; 14] = [
    ("behind by a moment", "a_processor_follows_the_log"),
    ("never change", "a_hole_a_damaged_row_and_one_of_a_newer_release_are_errors_and_never_skipped"),
    ("Formats change", "upcasts_run_step_by_step_and_what_is_unknown_is_an_error_with_its_name"),
    ("from many processes", "a_refused_commit_says_why_and_writes_nothing"),
    ("no queries", "a_claim_is_unique_until_it_is_released"),
    ("Long streams", "a_load_of_more_than_a_thousand_events_without_a_snapshot_is_an_event"),
    ("by the business", ADVICE),
    ("at least once", "an_event_of_the_topic_is_a_commit_with_its_events_and_nothing_can_be_appended"),
    ("low-level", "an_aggregate_sends_messages_with_its_events_and_none_with_a_rejection"),
    ("protects itself", "three_handles_sell_each_seat_once"),
    ("audited", "a_snapshot_and_the_tail_are_the_full_fold_of_each_prefix"),
    ("both held against", "after_a_conflict_only_the_tail_is_read_and_without_one_nothing"),
    ("Several tasks", "a_processor_follows_the_log"),
    ("Personal data", ADVICE),
];

const CQRS: [Point; 12] = [
    ("fails alone", "a_token_is_answered_when_the_view_has_it_and_never_before"),
    ("acts on old data", "a_token_is_answered_when_the_view_has_it_and_never_before"),
    ("Only the part", ADVICE),
    ("rows and events of one commit", "a_refused_commit_says_why_and_writes_nothing"),
    ("told, not hidden", "a_view_is_being_built_until_it_has_caught_up_once"),
    ("more concepts", ADVICE),
    ("built anew", "a_new_version_is_built_beside_the_old_one_which_is_retired_later"),
    ("Long folds", "a_load_of_more_than_a_thousand_events_without_a_snapshot_is_an_event"),
    ("Many small commands", "three_handles_sell_each_seat_once"),
    ("another kind", "lost_rows_and_a_lost_store_are_built_again"),
    ("stops no other", "an_event_that_does_not_decode_stops_the_projector_behind_what_came_before"),
    ("move apart", "upcasts_run_step_by_step_and_what_is_unknown_is_an_error_with_its_name"),
];

const INDEX_TABLE: [Point; 10] = [
    (
        "queries that are asked",
        "a_repair_reports_an_index_that_was_never_looked_up_and_each_key_with_over_a_tenth_of_all_entries",
    ),
    ("Copies of a row", "a_put_that_changes_no_key_costs_two_requests_and_each_changed_key_three_more"),
    ("has two steps", "copies_come_from_the_index_alone_and_change_with_their_row"),
    ("consistent later", "a_process_in_memory_that_ends_or_fails_at_any_request_leaves_stale_entries_at_most"),
    ("in one batch", "a_row_and_the_entries_beside_it_are_written_in_one_batch"),
    ("partitioned itself", "a_row_is_found_by_each_of_its_keys_until_the_next_put"),
    ("composite", "a_look_up_has_the_order_of_the_second_part_a_prefix_and_pages"),
    ("finds the shard", "a_put_that_changes_no_key_costs_two_requests_and_each_changed_key_three_more"),
    ("is stale before", "stale_entries_are_counted_by_look_ups_and_removed_by_a_repair"),
    (
        "tells little apart",
        "a_repair_reports_an_index_that_was_never_looked_up_and_each_key_with_over_a_tenth_of_all_entries",
    ),
];

const MATERIALIZED_VIEW: [Point; 9] = [
    ("on a schedule", "rows_of_a_loader_are_served_once_all_are_there_and_later_events_are_folded_into_them"),
    ("cost too much", "an_event_of_a_page_says_how_much_changed"),
    ("cost storage", "a_view_is_being_built_until_it_has_caught_up_once"),
    ("is of no moment", "a_row_is_the_fold_of_the_events_up_to_its_place"),
    ("another store", "several_topics_and_partitions_are_folded_each_to_its_own_place"),
    ("may be lost", "lost_rows_and_a_lost_store_are_built_again"),
    ("in any way", "a_row_is_the_fold_of_the_events_up_to_its_place"),
    ("may be indexed", ADVICE),
    ("Only the projection", "of_several_projectors_one_folds_and_another_takes_over_once_it_is_gone"),
];

const PIPES_AND_FILTERS: [Point; 12] = [
    ("A chain is complex", "a_filter_explains_its_outputs_and_warns_of_duplicates"),
    ("Nothing is lost", "a_chain_whose_process_crashes_at_any_request_delivers_each_message_once_and_in_order"),
    ("Filters are idempotent", "each_message_carries_the_way_on_which_it_came_into_being"),
    ("are recognized", "an_output_elsewhere_must_recognize_repeated_messages_for_longer_than_they_are_delivered"),
    ("Context travels", "headers_group_and_reply_address_travel_with_the_results"),
    ("its slowest filter", "the_slowest_filter_of_a_chain_is_warned_of_and_slows_those_before_it"),
    ("can be reordered", ADVICE),
    ("scale together", ADVICE),
    ("goes to another one", "a_chain_whose_process_crashes_at_any_request_delivers_each_message_once_and_in_order"),
    ("drives a saga", ADVICE),
    ("one transaction", ADVICE),
    ("A stop waits", "a_filter_that_stops_releases_what_it_holds"),
];

const FEDERATED_IDENTITY: [Point; 7] = [
    (
        "single point of failure",
        "keys_serve_until_they_are_too_old_while_their_issuer_is_away_and_others_do_not_notice",
    ),
    ("Roles come from claims", "a_subject_belongs_to_its_issuer_and_scopes_are_whole_words"),
    ("tell little", "a_subject_belongs_to_its_issuer_and_scopes_are_whole_words"),
    ("Home realm", ADVICE),
    ("must fit the application", "each_setting_that_would_accept_too_much_is_refused_by_name"),
    ("come and go", "tenants_come_and_go_in_use"),
    ("Chains of token services", "each_token_made_by_hand_is_refused_for_its_reason"),
];

const GATEKEEPER: [Point; 6] = [
    ("internal endpoints", "of_a_call_the_host_refuses_a_seal_that_is_altered_expired_used_or_for_another_host"),
    ("Few rights", "a_host_with_a_key_that_signs_and_a_gate_without_one_are_refused"),
    ("No processing", "a_redelivered_message_is_opened_again_and_its_copy_in_another_message_is_not"),
    ("secure channel", "of_a_call_the_host_refuses_a_seal_that_is_altered_expired_used_or_for_another_host"),
    ("costs time", "a_refused_request_has_cost_nothing_of_the_later_steps"),
    ("single point of failure", ADVICE),
];

const STATIC_CONTENT: [Point; 6] = [
    ("HTTP or HTTPS", "settings_that_break_their_rules_are_refused_by_name"),
    ("A CDN in front", "files_are_kept_for_a_year_pages_are_asked_for_each_time_and_the_rest_is_not_found"),
    ("Addresses move", "an_address_is_escaped_below_the_base"),
    ("out of step", "one_snapshot_has_the_links_of_one_release"),
    ("No domain of its own", "an_address_is_escaped_below_the_base"),
    ("never to write", "a_service_needs_no_right_to_write"),
];

const VALET_KEY: [Point; 13] = [
    ("lives 15 min", "a_revocation_holds_from_the_next_check_on_in_each_process"),
    ("least rights", "a_key_is_for_one_operation_on_one_path_or_below_one_folder"),
    ("The size of a body", "the_first_byte_beyond_the_limit_ends_a_body"),
    ("unchecked", "an_inspection_sees_the_copy_and_decides"),
    ("Each issue and use", "events_name_ids_tags_and_paths_and_never_a_key"),
    ("delivered by TLS", "a_key_that_is_expired_too_new_altered_or_of_others_is_refused"),
    ("The transfer", "of_clients_that_lie_nothing_is_accepted"),
    ("Nobody tells", "a_sweep_completes_what_nobody_reports_and_ends_what_nobody_uploads"),
    ("URLs bind less", "an_upload_url_writes_one_random_name_and_binds_what_its_store_can_bind"),
    ("Clocks differ", "a_key_that_is_expired_too_new_altered_or_of_others_is_refused"),
    ("Addresses are logged", ADVICE),
    ("CORS", ADVICE),
    ("for each tag", "outstanding_bytes_of_a_tag_are_limited_over_all_processes"),
];

const SUPERVISOR: [Point; 11] = [
    ("Needs for scale", "a_child_that_always_wants_to_run_is_polled_for_its_share_of_the_time"),
    ("Recycling a process", "a_process_that_crashes_at_any_request_repeats_no_more_steps_than_lie_between_two_saves"),
    ("another rhythm of releases", ADVICE),
    ("one security context", ADVICE),
    ("must not take all", "an_optional_child_delays_nothing_and_never_escalates"),
    ("Contention", "a_poll_above_the_limit_is_an_event_that_names_the_child"),
    ("rules of its own", "transient_and_temporary_children_may_end_and_a_run_ends_with_its_last_child"),
    ("moves to a process of its own", "an_escalation_of_a_nested_supervisor_is_one_failure_of_its_parents_child"),
    ("may be cheaper", ADVICE),
    ("no longer than the platform", "all_children_together_stop_within_the_shutdown_timeout"),
    ("ready late", "children_start_in_order_and_wait_for_the_one_before_to_be_ready"),
];

const CONFIG_STORE: [Point; 11] = [
    ("Availability and backup", "a_head_from_a_backup_is_taken_with_an_event"),
    ("types and versions", "no_read_of_a_hundred_thousand_during_changes_of_two_layers_mixes_moments"),
    ("physical cost", "a_change_without_effect_and_one_that_is_too_large_are_refused"),
    ("Scope and inheritance", "a_revision_that_changes_none_of_the_layers_is_taken_without_parsing"),
    (
        "Formats of other programs",
        "a_change_that_one_of_the_readers_refuses_is_not_published_and_the_error_names_reader_and_field",
    ),
    ("wrong, missing", "a_revision_that_cannot_be_used_leaves_the_one_before_with_one_event_and_later_ones_apply"),
    ("Protection", "a_change_that_one_of_the_readers_refuses_is_not_published_and_the_error_names_reader_and_field"),
    ("Deployed as code", "a_rollback_is_a_new_revision_and_the_audit_tells_who_why_when_and_from_where"),
    ("notices or an end", "a_change_arrives_with_its_notice_or_within_a_poll_and_is_applied_once"),
    ("Access is logged", "a_rollback_is_a_new_revision_and_the_audit_tells_who_why_when_and_from_where"),
    ("away at a start", "a_start_without_the_store_takes_the_last_known_good_revision"),
];

const RECONFIGURATION: [Point; 12] = [
    ("controlled and audited", "a_rollback_is_a_new_revision_and_the_audit_tells_who_why_when_and_from_where"),
    ("The host sends no event", "a_mounted_configuration_whose_link_is_swapped_is_seen"),
    ("interval of polls", "a_thousand_idle_processes_make_at_most_34_reads_a_second"),
    ("differ for a while", "the_number_that_each_member_runs_is_listed"),
    ("need a restart", "a_child_restarts_last_with_its_new_section_and_only_if_that_has_changed"),
    ("no part takes", "a_change_that_no_part_takes_is_refused_with_the_names_of_the_parts"),
    ("Staged and confirmed", "a_change_reaches_one_stage_after_another_and_each_stays_well_before_the_next"),
    (
        "Rollback at once",
        "a_fault_at_each_position_leaves_all_parts_as_before_or_says_which_have_changed_and_is_unhealthy",
    ),
    ("store is missing", "while_the_store_is_away_the_revision_stays_and_its_age_grows"),
    ("Derived values", "after_one_veto_with_part_and_field_nothing_has_changed_and_equal_sections_are_not_touched"),
    ("may be refused", "after_one_veto_with_part_and_field_nothing_has_changed_and_equal_sections_are_not_touched"),
    ("Other triggers", ADVICE),
];

const HEALTH: [Point; 13] = [
    (
        "A 200 is not enough",
        "an_anonymous_request_hears_a_word_and_one_with_the_secret_details_without_texts_of_errors",
    ),
    ("A missing page", "a_round_in_which_a_known_target_is_misjudged_is_inconclusive"),
    ("How many endpoints", "liveness_refuses_a_dependency_and_an_outage_of_one_leaves_it_healthy"),
    ("A path of its own", ADVICE),
    ("What is returned", "an_anonymous_request_hears_a_word_and_one_with_the_secret_details_without_texts_of_errors"),
    ("How much is checked", "liveness_refuses_a_dependency_and_an_outage_of_one_leaves_it_healthy"),
    ("Security", "the_secret_is_replaced_in_use_and_shown_nowhere"),
    ("Denial of service", "at_a_thousand_reports_a_second_each_check_runs_once_in_its_time"),
    (
        "Tools without credentials",
        "an_anonymous_request_hears_a_word_and_one_with_the_secret_details_without_texts_of_errors",
    ),
    ("The monitor is watched", "thresholds_decide_and_a_result_that_is_too_old_is_unhealthy"),
    ("Balancers give up", "a_check_that_hangs_delays_a_report_for_its_time_alone_is_dropped_and_does_not_pile_up"),
    ("Latency, names and certificates", "the_latency_of_an_answer_and_the_time_of_a_look_up_are_told_apart"),
    ("of all tenants", "liveness_refuses_a_dependency_and_an_outage_of_one_leaves_it_healthy"),
];

/// Returns the page of a room, by its floor. A floor that is one room, such as `call`, is its own floor.
fn page(floor: &str, room: &str) -> String {
    let folder = if floor == room { room.to_owned() } else { format!("{floor}/{room}") };
    fs::read_to_string(format!("{}/src/{folder}/mod.rs", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

/// Returns the text of all Rust files in these folders.
fn text_of(folders: &[&str]) -> String {
    fn read(path: &Path, text: &mut String) {
        if path.is_dir() {
            fs::read_dir(path).unwrap().for_each(|entry| read(&entry.unwrap().path(), text));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            *text += &fs::read_to_string(path).unwrap();
        }
    }
    let mut text = String::new();
    folders.iter().for_each(|folder| read(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder), &mut text));
    text
}

/// Returns the numbered points of the chapter under this heading, each in one line. `mark` begins each line of the text.
fn points(page: &str, mark: &str, heading: &str) -> Vec<String> {
    let chapter = page.split(&format!("{mark}{heading}\n")).nth(1).expect("a chapter");
    let level = heading.split(' ').next().unwrap();
    let chapter = chapter.split(&format!("{mark}{level} ")).next().unwrap();
    let mut points: Vec<String> = Vec::new();
    for line in chapter.lines().filter_map(|line| line.strip_prefix(mark.trim_end())).map(str::trim) {
        let number = format!("{}. ", points.len() + 1);
        match (line.strip_prefix(&*number), points.last_mut()) {
            (Some(first), _) => points.push(first.to_owned()),
            (None, Some(point)) => *point += &format!(" {line}"),
            (None, None) => {}
        }
    }
    points
}

#[test]
fn each_consideration_of_the_source_is_listed_with_how_it_is_met_and_a_test_shows_it() {
    let tests = text_of(&["tests/it", "tests/edge", "tests/events", "tests/operations"]);
    let page = include_str!("../../../docs/considerations.md");
    let rooms: [(&str, &[Point]); 23] = [
        ("cache_aside", &CACHE_ASIDE),
        ("circuit_breaker", &CIRCUIT_BREAKER),
        ("retry", &RETRY),
        ("throttling", &THROTTLING),
        ("leader_election", &LEADER_ELECTION),
        ("sharding", &SHARDING),
        ("queue_listener", &QUEUE_LISTENER),
        ("saga", &SAGA),
        ("scheduler", &SCHEDULER),
        ("pipes_and_filters", &PIPES_AND_FILTERS),
        ("stream", &STREAM),
        ("federated_identity", &FEDERATED_IDENTITY),
        ("gatekeeper", &GATEKEEPER),
        ("static_content", &STATIC_CONTENT),
        ("cqrs", &CQRS),
        ("valet_key", &VALET_KEY),
        ("event_sourcing", &EVENT_SOURCING),
        ("index_table", &INDEX_TABLE),
        ("materialized_view", &MATERIALIZED_VIEW),
        ("supervisor", &SUPERVISOR),
        ("config_store", &CONFIG_STORE),
        ("reconfiguration", &RECONFIGURATION),
        ("health", &HEALTH),
    ];
    assert_eq!(rooms.iter().map(|(_, points)| points.len()).sum::<usize>(), 252);
    for (room, wanted) in rooms {
        let points = points(page, "", &format!("## {room}"));
        assert_eq!(points.len(), wanted.len(), "{room}: {points:#?}");
        for (point, (part, shown)) in points.iter().zip(wanted) {
            assert!(point.contains(part), "{room} has no point {part:?}, but {point:?}");
            // "(default)", "(default: one minute)", "(table above; default)".
            let marks = ["(default", "default)", "(refusal", "(warning", "(option", ADVICE];
            let met = marks.iter().any(|mark| point.contains(mark));
            assert!(met, "{room} does not say how this is met: {point}");
            assert_eq!(point.contains(ADVICE), *shown == ADVICE, "{room}: {point}");
            assert!(*shown == ADVICE || tests.contains(&format!("fn {shown}(")), "no test shows: {point}");
        }
    }
}

/// Asserts that a test names each guarantee of a page, and that no test names a missing guarantee.
///
/// A test names it in a comment: `// Guarantee: ROOM 3.` or `// Guarantee: ROOM 3, 4.`
fn guarantees_are_shown(floor: &str, room: &str) {
    let count = points(&page(floor, room), "//! ", "# Guarantees").len();
    let mut shown = vec![0; count + 1];
    for named in text_of(&["tests", "src"]).split(&format!("// Guarantee: {room} ")).skip(1) {
        for number in named.lines().next().unwrap().trim_end_matches('.').split(", ") {
            let number: usize = number.parse().unwrap_or_else(|_| panic!("{room}: {number:?} is no number"));
            assert!((1..=count).contains(&number), "{room} has no guarantee {number}");
            shown[number] += 1;
        }
    }
    let missing: Vec<_> = (1..=count).filter(|number| shown[*number] == 0).collect();
    assert!(count > 0 && missing.is_empty(), "no test shows these guarantees of {room}: {missing:?}");
}

macro_rules! guarantees {
    ($($floor:ident: $($room:ident)*;)*) => { $($(
        #[test]
        fn $room() {
            super::guarantees_are_shown(stringify!($floor), stringify!($room));
        }
    )*)* };
}

mod guarantees_of_each_page_are_shown_by_tests {
    guarantees! {
        patterns: timeout;
        patterns: leader_election;
        patterns: coalesce;
        patterns: cache_aside;
        patterns: circuit_breaker chaos;
        patterns: throttling;
        call: call;
        patterns: retry hedge fallback;
        roof: standard;
        wings: tower testing console;
        patterns: sharding index_table supervisor config_store health;
        ground: token;
        patterns: federated_identity gatekeeper valet_key static_content;
        ports: lease notify queue store;
        patterns: queue_listener claim_check saga;
        roof: journal scheduler pipes_and_filters stream event_sourcing materialized_view reconfiguration;
    }
}
