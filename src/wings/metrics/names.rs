//! The table of all metrics: name, unit, labels, description. A test compares it with the table of
//! the module's page and with what is registered.
use ::metrics::Unit;

/// The kind of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum MetricKind {
    /// A value that only increases.
    Counter,
    /// A current value.
    Gauge,
    /// A distribution of values.
    Histogram,
}

/// One metric family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Series {
    /// Metric name.
    pub name: &'static str,
    /// Kind of the metric.
    pub kind: MetricKind,
    /// Unit of the values, if they have one.
    pub unit: Option<Unit>,
    /// Labels beside `name`, separated by commas.
    pub labels: &'static str,
    /// Description, as registered with the recorder.
    pub description: &'static str,
}

const fn counter(name: &'static str, labels: &'static str, description: &'static str) -> Series {
    Series { name, kind: MetricKind::Counter, unit: None, labels, description }
}

const fn gauge(name: &'static str, labels: &'static str, description: &'static str) -> Series {
    Series { name, kind: MetricKind::Gauge, unit: None, labels, description }
}

const fn seconds(kind: MetricKind, name: &'static str, labels: &'static str, description: &'static str) -> Series {
    Series { name, kind, unit: Some(Unit::Seconds), labels, description }
}

/// All metric families, in the order of the page's table.
pub const NAMES: &[Series] = &[
    counter("steadfast_calls_total", "outcome", "calls by outcome: success, failure, ignored, rejected, cancelled"),
    seconds(MetricKind::Histogram, "steadfast_call_duration_seconds", "outcome", "duration of calls"),
    gauge("steadfast_calls_in_flight", "", "calls in flight"),
    counter("steadfast_call_failures_total", "kind", "failed calls by kind of failure"),
    counter("steadfast_call_rejections_total", "reason", "rejected calls by reason"),
    counter("steadfast_timeout_timed_out_total", "", "calls that exceeded the time-out and were dropped"),
    counter("steadfast_retry_retries_total", "kind", "retries by the kind of the failure before"),
    counter("steadfast_retry_recovered_total", "", "calls that succeeded after at least one failed attempt"),
    counter(
        "steadfast_retry_gave_up_total",
        "reason",
        "calls that failed in the end, by the reason for no further attempt",
    ),
    seconds(MetricKind::Histogram, "steadfast_retry_delay_seconds", "", "delay before a retry"),
    gauge("steadfast_retry_budget_balance", "", "retries that the budget permits now"),
    gauge("steadfast_circuit_breaker_state", "state", "1 for the current state, 0 for the others"),
    counter("steadfast_circuit_breaker_transitions_total", "to", "state transitions by the new state"),
    counter("steadfast_circuit_breaker_openings_total", "rule", "openings by the rule that opened the breaker"),
    seconds(
        MetricKind::Histogram,
        "steadfast_circuit_breaker_state_duration_seconds",
        "state",
        "time spent in a state, recorded when the breaker leaves it",
    ),
    counter("steadfast_circuit_breaker_failures_total", "", "failures of admitted calls"),
    counter("steadfast_circuit_breaker_slow_total", "", "slow calls"),
    counter("steadfast_circuit_breaker_suppressed_total", "", "openings suppressed because `max_open` was reached"),
    counter("steadfast_circuit_breaker_rejected_total", "", "calls that the breaker rejected"),
    gauge("steadfast_circuit_breaker_share", "", "share of calls that the breaker admits, from 0 to 1"),
    gauge("steadfast_circuit_breaker_window_calls", "", "calls in the window"),
    gauge("steadfast_circuit_breaker_window_failures", "", "failed calls in the window"),
    gauge("steadfast_circuit_breaker_window_slow", "", "slow calls in the window"),
    gauge("steadfast_circuit_breaker_keys", "state", "keys of a breaker registry by state"),
    gauge("steadfast_shared_breaker_store_up", "", "1 while the store that shares the breaker's state answers, else 0"),
    gauge("steadfast_shared_breaker_reports", "", "other processes that report their breaker as open"),
    counter(
        "steadfast_shared_breaker_events_total",
        "event",
        "events: reported, opened_with_others, store_failed, notifier_failed",
    ),
    counter("steadfast_throttling_rejected_total", "policy, reason", "calls that a limiter rejected"),
    counter("steadfast_throttling_queued_total", "policy", "calls that had to wait for a limiter"),
    seconds(
        MetricKind::Histogram,
        "steadfast_throttling_wait_seconds",
        "policy",
        "wait for a limiter, if known in advance",
    ),
    counter("steadfast_throttling_changed_total", "policy", "changes of a limit at run time"),
    gauge("steadfast_rate_limit_keys", "", "keys that a keyed rate limiter holds in memory"),
    gauge("steadfast_shared_limit_store_up", "", "1 while the store of a shared rate limit answers, else 0"),
    gauge("steadfast_shared_limit_leased", "", "permits leased in advance and not yet used"),
    gauge("steadfast_shared_limit_tenants", "", "tenants that this process knows"),
    counter("steadfast_shared_limit_store_failures_total", "", "failed calls to the store"),
    counter("steadfast_shared_limit_leased_total", "", "permits leased in advance"),
    gauge("steadfast_concurrency_limit_capacity", "", "maximum of concurrent calls"),
    gauge("steadfast_concurrency_limit_in_use", "", "permits in use"),
    gauge("steadfast_concurrency_limit_waiting", "", "calls in the queue"),
    gauge("steadfast_adaptive_limit_limit", "", "current limit of concurrent calls"),
    gauge("steadfast_adaptive_limit_in_flight", "", "calls in flight"),
    gauge("steadfast_adaptive_limit_waiting", "", "calls in the queue"),
    seconds(
        MetricKind::Gauge,
        "steadfast_adaptive_limit_base_latency_seconds",
        "",
        "estimated latency without queueing",
    ),
    gauge("steadfast_shed_ratio", "priority", "share of calls that are shed, from 0 to 1"),
    counter("steadfast_shed_began_total", "", "starts of load shedding"),
    gauge("steadfast_client_throttle_requests", "", "requests in the window"),
    gauge("steadfast_client_throttle_accepts", "", "requests in the window that the server accepted"),
    gauge(
        "steadfast_client_throttle_rejection_ratio",
        "",
        "probability that the next call is rejected locally, from 0 to 1",
    ),
    gauge("steadfast_degradation_features_off", "", "features that are switched off"),
    counter("steadfast_degradation_switches_total", "feature, to", "switches of features, off and on"),
    counter("steadfast_hedge_hedges_total", "cause", "hedged attempts by cause: late, failed"),
    counter("steadfast_hedge_won_total", "", "calls whose result came from a hedged attempt"),
    counter("steadfast_hedge_suppressed_total", "reason", "hedged attempts that were due and not started"),
    counter("steadfast_hedge_all_failed_total", "", "calls with more than one attempt, all of which failed"),
    seconds(MetricKind::Gauge, "steadfast_hedge_delay_seconds", "", "current delay before a hedged attempt"),
    counter(
        "steadfast_fallback_calls_total",
        "outcome",
        "calls that needed the fallback: fell_back, failed, timed_out",
    ),
    gauge("steadfast_coalesce_in_flight", "", "shared executions in flight"),
    counter("steadfast_journal_entries_total", "event", "entries: deferred, defer_failed, replayed, failed, poisoned"),
    gauge("steadfast_chaos_enabled", "", "1 while fault injection is enabled, else 0"),
    counter(
        "steadfast_chaos_injected_total",
        "injection",
        "injected faults: delayed, failed, replaced, hung, panicked",
    ),
    counter("steadfast_cache_requests_total", "result", "cache look-ups: hit, miss, stale"),
    counter("steadfast_cache_remote_hits_total", "", "local misses that the remote tier served"),
    counter("steadfast_cache_loads_total", "", "loads started"),
    counter("steadfast_cache_load_failures_total", "", "loads that failed or timed out"),
    counter(
        "steadfast_cache_superseded_total",
        "",
        "loaded values not cached because of an invalidation during the load",
    ),
    counter("steadfast_cache_evictions_total", "", "entries evicted to make room"),
    counter("steadfast_cache_invalidations_total", "", "invalidations of keys and tags, and clears"),
    counter("steadfast_cache_faults_total", "", "failures of the remote tier and of the backplane"),
    gauge("steadfast_cache_entries", "", "entries in the local tier"),
    gauge("steadfast_leader_election_is_leader", "", "1 while this node is the leader, else 0"),
    gauge(
        "steadfast_leader_election_healthy",
        "",
        "0 while this node is the leader and its renewal is overdue, else 1",
    ),
    counter("steadfast_leader_election_elected_total", "", "terms that this node began as the leader"),
    counter("steadfast_leader_election_ended_total", "reason", "terms of this node that ended, by reason"),
    counter("steadfast_leader_election_call_failures_total", "", "failed calls to the lease"),
    gauge("steadfast_queue_listener_tasks", "", "worker tasks"),
    gauge("steadfast_queue_listener_in_flight", "", "handlers in flight"),
    gauge("steadfast_queue_listener_buffered", "", "received messages that wait for a handler"),
    gauge("steadfast_queue_listener_held", "", "handled messages whose results wait for room in a full queue"),
    gauge(
        "steadfast_queue_listener_depth",
        "state",
        "messages in the queue at the last check: visible, delayed, in_flight",
    ),
    gauge("steadfast_queue_listener_dead_letters", "", "dead letters of the queue at the last check"),
    gauge("steadfast_queue_listener_paused", "", "1 while the listener is paused or all its queues are, else 0"),
    counter("steadfast_queue_listener_polls_total", "", "receive requests"),
    counter("steadfast_queue_listener_empty_polls_total", "", "receive requests that returned no message"),
    counter("steadfast_queue_listener_requests_total", "", "requests of all kinds to the queue"),
    counter(
        "steadfast_queue_listener_messages_total",
        "event",
        "messages: received, handled, failed, dead_lettered, lease_lost, duplicate, released, refused, snoozed, cancelled",
    ),
    counter(
        "steadfast_saga_events_total",
        "event",
        "sagas: started, taken_over, compensating, completed, compensated, stuck; superseded, incompatible, store_failed",
    ),
    counter(
        "steadfast_saga_attempts_total",
        "outcome",
        "attempts of steps that did not complete: failed, abandoned, unknown, not_sent, refused, pending",
    ),
    gauge("steadfast_saga_running", "", "sagas that this component runs now"),
    counter(
        "steadfast_scheduler_events_total",
        "event",
        "messages and sagas: resent, stranded, dead_lettered, reply_failed",
    ),
    counter("steadfast_filter_events_total", "event", "results to queues of other engines: send_failed, may_repeat"),
    gauge("steadfast_standard_part_on", "part", "1 while this part of a standard stack is on, else 0"),
    gauge("steadfast_sharding_map_version", "", "version of the shard map that this process uses"),
    counter("steadfast_sharding_map_changes_total", "", "times that this process switched to a new map"),
    counter("steadfast_sharding_refresh_failures_total", "", "failed reads of the map"),
    counter("steadfast_sharding_steps_total", "", "steps of moves recorded by this process"),
    counter("steadfast_sharding_mover_failures_total", "", "failures of movers"),
    counter("steadfast_sharding_calls_total", "shard", "routed calls by shard"),
    counter(
        "steadfast_stream_processor_events_total",
        "event",
        "partitions and events: claimed, released, careful, halted, skipped; attempt_failed, dead_lettered, call_failed",
    ),
    gauge("steadfast_stream_processor_partitions", "", "partitions that this member owns"),
    gauge("steadfast_stream_processor_halted", "", "partitions of this member that need an operator"),
    gauge("steadfast_stream_processor_lag", "", "unfinished events in the partitions of this member"),
    gauge("steadfast_stream_processor_in_flight", "", "handlers in flight"),
];
