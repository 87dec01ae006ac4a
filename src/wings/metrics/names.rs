//! Every number there is: its name, unit, labels and meaning. The page's table is this one, and a test holds both together.
use ::metrics::Unit;

/// What sort of number it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Of {
    /// Only grows.
    Counter,
    /// As it is now.
    Gauge,
    /// How values are spread.
    Histogram,
}

/// One family of numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Series {
    /// The metric's name.
    pub name: &'static str,
    /// Which sort.
    pub of: Of,
    /// The unit, where it is not a plain number.
    pub unit: Option<Unit>,
    /// Its labels beside `name`.
    pub labels: &'static str,
    /// What it says.
    pub text: &'static str,
}

const fn counter(name: &'static str, labels: &'static str, text: &'static str) -> Series {
    Series { name, of: Of::Counter, unit: None, labels, text }
}

const fn gauge(name: &'static str, labels: &'static str, text: &'static str) -> Series {
    Series { name, of: Of::Gauge, unit: None, labels, text }
}

const fn seconds(of: Of, name: &'static str, labels: &'static str, text: &'static str) -> Series {
    Series { name, of, unit: Some(Unit::Seconds), labels, text }
}

/// All families, in the order of the page's table.
pub const NAMES: &[Series] = &[
    counter(
        "steadfast_calls_total",
        "outcome",
        "calls by how they ended: success, failure, ignored, rejected, cancelled",
    ),
    seconds(Of::Histogram, "steadfast_call_duration_seconds", "outcome", "how long calls took"),
    gauge("steadfast_calls_in_flight", "", "calls under way"),
    counter("steadfast_call_failures_total", "kind", "failures by kind"),
    counter("steadfast_call_rejections_total", "reason", "refusals by reason"),
    counter("steadfast_timeout_timed_out_total", "", "work that was dropped for its time"),
    counter("steadfast_retry_retries_total", "kind", "further attempts, by how the one before failed"),
    counter("steadfast_retry_recovered_total", "", "calls that succeeded after a failure"),
    counter("steadfast_retry_gave_up_total", "stop", "calls that failed in the end, by why no attempt followed"),
    seconds(Of::Histogram, "steadfast_retry_delay_seconds", "", "waits before further attempts"),
    gauge("steadfast_retry_budget_balance", "", "retries that the budget allows now"),
    gauge("steadfast_circuit_breaker_state", "state", "1 for the current state, 0 for the others"),
    counter("steadfast_circuit_breaker_transitions_total", "to", "changes of state"),
    counter("steadfast_circuit_breaker_openings_total", "rule", "openings by rule"),
    seconds(
        Of::Histogram,
        "steadfast_circuit_breaker_state_duration_seconds",
        "state",
        "time spent in a state, when it ends",
    ),
    counter("steadfast_circuit_breaker_failures_total", "", "failures of calls that passed"),
    counter("steadfast_circuit_breaker_slow_total", "", "slow calls"),
    counter("steadfast_circuit_breaker_suppressed_total", "", "openings suppressed because `max_open` was reached"),
    counter("steadfast_circuit_breaker_rejected_total", "", "rejected calls"),
    gauge("steadfast_circuit_breaker_share", "", "share of the calls that pass, from 0 to 1"),
    gauge("steadfast_circuit_breaker_window_calls", "", "calls in the window"),
    gauge("steadfast_circuit_breaker_window_failures", "", "failures in the window"),
    gauge("steadfast_circuit_breaker_window_slow", "", "slow calls in the window"),
    gauge("steadfast_circuit_breaker_keys", "state", "keys of a registry of breakers, by state"),
    gauge("steadfast_shared_breaker_store_up", "", "1 while the store through which processes share a breaker answers"),
    gauge("steadfast_shared_breaker_reports", "", "other processes whose breaker is open"),
    counter(
        "steadfast_shared_breaker_events_total",
        "event",
        "reported, opened_with_others, store_failed, notifier_failed",
    ),
    counter("steadfast_throttling_rejected_total", "policy, reason", "calls that a limiter refused"),
    counter("steadfast_throttling_queued_total", "policy", "calls that had to wait their turn"),
    seconds(Of::Histogram, "steadfast_throttling_wait_seconds", "policy", "waits, where they are known beforehand"),
    counter("steadfast_throttling_changed_total", "policy", "changes of a limit while in use"),
    gauge("steadfast_rate_limit_keys", "", "keys that a keyed limiter remembers"),
    gauge("steadfast_shared_limit_store_up", "", "1 while the store answers"),
    gauge("steadfast_shared_limit_leased", "", "permits that were taken ahead"),
    gauge("steadfast_shared_limit_tenants", "", "tenants that are known here"),
    counter("steadfast_shared_limit_store_failures_total", "", "calls of the store that failed"),
    counter("steadfast_shared_limit_leased_total", "", "permits that were taken ahead, in all"),
    gauge("steadfast_concurrency_limit_capacity", "", "places"),
    gauge("steadfast_concurrency_limit_in_use", "", "places that are taken"),
    gauge("steadfast_concurrency_limit_waiting", "", "calls in the queue"),
    gauge("steadfast_adaptive_limit_limit", "", "places that it found"),
    gauge("steadfast_adaptive_limit_in_flight", "", "places that are taken"),
    gauge("steadfast_adaptive_limit_waiting", "", "calls in the queue"),
    seconds(Of::Gauge, "steadfast_adaptive_limit_base_latency_seconds", "", "what a call takes alone"),
    gauge("steadfast_shed_ratio", "priority", "the share of calls that is shed, from 0 to 1"),
    counter("steadfast_shed_began_total", "", "times that shedding began"),
    gauge("steadfast_client_throttle_requests", "", "calls in its window"),
    gauge("steadfast_client_throttle_accepts", "", "calls in its window that the other side accepted"),
    gauge(
        "steadfast_client_throttle_rejection_ratio",
        "",
        "the probability that the next call is rejected, from 0 to 1",
    ),
    gauge("steadfast_degradation_features_off", "", "features that are switched off"),
    counter("steadfast_degradation_switches_total", "feature, to", "switches of features, off and on"),
    counter("steadfast_hedge_hedges_total", "cause", "attempts beside the first"),
    counter("steadfast_hedge_won_total", "", "calls whose result came from one of those"),
    counter("steadfast_hedge_held_total", "why", "attempts that were due and not made"),
    counter("steadfast_hedge_all_failed_total", "", "calls of which all attempts failed"),
    seconds(Of::Gauge, "steadfast_hedge_delay_seconds", "", "how long an attempt may take before another starts"),
    counter("steadfast_fallback_calls_total", "outcome", "calls that fell back: fell_back, failed, timed_out"),
    gauge("steadfast_coalesce_under_way", "", "executions that callers share now"),
    counter("steadfast_journal_entries_total", "event", "entries: deferred, defer_failed, replayed, failed, poisoned"),
    gauge("steadfast_chaos_enabled", "", "1 while it is switched on"),
    counter(
        "steadfast_chaos_injected_total",
        "injection",
        "faults on purpose: delayed, failed, replaced, hung, panicked",
    ),
    counter("steadfast_cache_requests_total", "result", "look-ups: hit, miss, stale"),
    counter("steadfast_cache_remote_hits_total", "", "misses that the remote tier had"),
    counter("steadfast_cache_loads_total", "", "loads begun"),
    counter("steadfast_cache_load_failures_total", "", "loads that failed or took too long"),
    counter("steadfast_cache_superseded_total", "", "loaded values that an invalidation overtook"),
    counter("steadfast_cache_evictions_total", "", "entries that made room for others"),
    counter("steadfast_cache_invalidations_total", "", "keys, tags and clears that were invalidated"),
    counter("steadfast_cache_faults_total", "", "failures of the remote tier and the backplane"),
    gauge("steadfast_cache_entries", "", "entries in the local tier"),
    gauge("steadfast_leader_election_is_leader", "", "1 while this node leads"),
    gauge("steadfast_leader_election_healthy", "", "0 where it leads and its renewal is overdue"),
    counter("steadfast_leader_election_elected_total", "", "terms that began"),
    counter("steadfast_leader_election_ended_total", "why", "terms that ended"),
    counter("steadfast_leader_election_call_failures_total", "", "calls of the lease that failed"),
    gauge("steadfast_queue_listener_tasks", "", "tasks"),
    gauge("steadfast_queue_listener_in_flight", "", "handlers under way"),
    gauge("steadfast_queue_listener_buffered", "", "messages that were taken, and wait for a handler"),
    gauge(
        "steadfast_queue_listener_depth",
        "state",
        "what the queue held when it was last asked: visible, delayed, in_flight",
    ),
    gauge("steadfast_queue_listener_paused", "", "1 while it is paused"),
    counter("steadfast_queue_listener_polls_total", "", "requests for messages"),
    counter("steadfast_queue_listener_empty_polls_total", "", "those that found none"),
    counter("steadfast_queue_listener_requests_total", "", "requests to the queue of all kinds"),
    counter(
        "steadfast_queue_listener_messages_total",
        "event",
        "messages: received, handled, failed, dead_lettered, lease_lost, duplicate, released, refused",
    ),
    gauge("steadfast_sharding_map_version", "", "the version of the map that this process goes by"),
    counter("steadfast_sharding_map_changes_total", "", "times that it got another map"),
    counter("steadfast_sharding_refresh_failures_total", "", "times that the map could not be read"),
    counter("steadfast_sharding_steps_total", "", "steps of moves that this process recorded"),
    counter("steadfast_sharding_mover_failures_total", "", "movers that failed"),
    counter("steadfast_sharding_calls_total", "shard", "routed calls"),
];
