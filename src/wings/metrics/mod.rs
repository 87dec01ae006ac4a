//! Metrics: the numbers of all policies, through the `metrics` facade. By feature `metrics`.
//!
//! [Events](crate::observe) tell what happened, one by one; these are sums, levels and distributions, for a dashboard and an alarm.
//!
//! # When, and when not
//!
//! Where a service has an exporter of the `metrics` facade (Prometheus, OpenTelemetry, StatsD). Nothing is counted that was not asked for:
//! a policy that nobody [watches](Metrics::watch) costs what it did. To look at one policy now and then, its `snapshot`, `stats` or `state`
//! is enough.
//!
//! # Defaults
//!
//! Each series has the label `name`: what it was watched as. One name is for one policy of a sort. Names are Prometheus's way: `_total` is a counter,
//! times are in seconds. (An exporter of OpenTelemetry may take them as they are.) Labels are words from closed sets, but for features and
//! shards, which are yours.
//!
//! | metric | | labels | what it says |
//! |---|---|---|---|
//! | `steadfast_calls_total` | counter | `outcome` | calls by how they ended: success, failure, ignored, rejected, cancelled |
//! | `steadfast_call_duration_seconds` | histogram, s | `outcome` | how long calls took |
//! | `steadfast_calls_in_flight` | gauge |  | calls under way |
//! | `steadfast_call_failures_total` | counter | `kind` | failures by kind |
//! | `steadfast_call_rejections_total` | counter | `reason` | refusals by reason |
//! | `steadfast_timeout_timed_out_total` | counter |  | work that was dropped for its time |
//! | `steadfast_retry_retries_total` | counter | `kind` | further attempts, by how the one before failed |
//! | `steadfast_retry_recovered_total` | counter |  | calls that succeeded after a failure |
//! | `steadfast_retry_gave_up_total` | counter | `stop` | calls that failed in the end, by why no attempt followed |
//! | `steadfast_retry_delay_seconds` | histogram, s |  | waits before further attempts |
//! | `steadfast_retry_budget_balance` | gauge |  | retries that the budget allows now |
//! | `steadfast_circuit_breaker_state` | gauge | `state` | 1 for the current state, 0 for the others |
//! | `steadfast_circuit_breaker_transitions_total` | counter | `to` | changes of state |
//! | `steadfast_circuit_breaker_openings_total` | counter | `rule` | openings by rule |
//! | `steadfast_circuit_breaker_state_duration_seconds` | histogram, s | `state` | time spent in a state, when it ends |
//! | `steadfast_circuit_breaker_failures_total` | counter |  | failures of calls that passed |
//! | `steadfast_circuit_breaker_slow_total` | counter |  | slow calls |
//! | `steadfast_circuit_breaker_suppressed_total` | counter |  | openings suppressed because `max_open` was reached |
//! | `steadfast_circuit_breaker_rejected_total` | counter |  | rejected calls |
//! | `steadfast_circuit_breaker_share` | gauge |  | share of the calls that pass, from 0 to 1 |
//! | `steadfast_circuit_breaker_window_calls` | gauge |  | calls in the window |
//! | `steadfast_circuit_breaker_window_failures` | gauge |  | failures in the window |
//! | `steadfast_circuit_breaker_window_slow` | gauge |  | slow calls in the window |
//! | `steadfast_circuit_breaker_keys` | gauge | `state` | keys of a registry of breakers, by state |
//! | `steadfast_shared_breaker_store_up` | gauge |  | 1 while the store through which processes share a breaker answers |
//! | `steadfast_shared_breaker_reports` | gauge |  | other processes whose breaker is open |
//! | `steadfast_shared_breaker_events_total` | counter | `event` | reported, opened_with_others, store_failed, notifier_failed |
//! | `steadfast_throttling_rejected_total` | counter | `policy`, `reason` | calls that a limiter refused |
//! | `steadfast_throttling_queued_total` | counter | `policy` | calls that had to wait their turn |
//! | `steadfast_throttling_wait_seconds` | histogram, s | `policy` | waits, where they are known beforehand |
//! | `steadfast_throttling_changed_total` | counter | `policy` | changes of a limit while in use |
//! | `steadfast_rate_limit_keys` | gauge |  | keys that a keyed limiter remembers |
//! | `steadfast_shared_limit_store_up` | gauge |  | 1 while the store answers |
//! | `steadfast_shared_limit_leased` | gauge |  | permits that were taken ahead |
//! | `steadfast_shared_limit_tenants` | gauge |  | tenants that are known here |
//! | `steadfast_shared_limit_store_failures_total` | counter |  | calls of the store that failed |
//! | `steadfast_shared_limit_leased_total` | counter |  | permits that were taken ahead, in all |
//! | `steadfast_concurrency_limit_capacity` | gauge |  | places |
//! | `steadfast_concurrency_limit_in_use` | gauge |  | places that are taken |
//! | `steadfast_concurrency_limit_waiting` | gauge |  | calls in the queue |
//! | `steadfast_adaptive_limit_limit` | gauge |  | places that it found |
//! | `steadfast_adaptive_limit_in_flight` | gauge |  | places that are taken |
//! | `steadfast_adaptive_limit_waiting` | gauge |  | calls in the queue |
//! | `steadfast_adaptive_limit_base_latency_seconds` | gauge, s |  | what a call takes alone |
//! | `steadfast_shed_ratio` | gauge | `priority` | the share of calls that is shed, from 0 to 1 |
//! | `steadfast_shed_began_total` | counter |  | times that shedding began |
//! | `steadfast_client_throttle_requests` | gauge |  | calls in its window |
//! | `steadfast_client_throttle_accepts` | gauge |  | calls in its window that the other side accepted |
//! | `steadfast_client_throttle_rejection_ratio` | gauge |  | the probability that the next call is rejected, from 0 to 1 |
//! | `steadfast_degradation_features_off` | gauge |  | features that are switched off |
//! | `steadfast_degradation_switches_total` | counter | `feature`, `to` | switches of features, off and on |
//! | `steadfast_hedge_hedges_total` | counter | `cause` | attempts beside the first |
//! | `steadfast_hedge_won_total` | counter |  | calls whose result came from one of those |
//! | `steadfast_hedge_held_total` | counter | `why` | attempts that were due and not made |
//! | `steadfast_hedge_all_failed_total` | counter |  | calls of which all attempts failed |
//! | `steadfast_hedge_delay_seconds` | gauge, s |  | how long an attempt may take before another starts |
//! | `steadfast_fallback_calls_total` | counter | `outcome` | calls that fell back: fell_back, failed, timed_out |
//! | `steadfast_coalesce_under_way` | gauge |  | executions that callers share now |
//! | `steadfast_journal_entries_total` | counter | `event` | entries: deferred, defer_failed, replayed, failed, poisoned |
//! | `steadfast_chaos_enabled` | gauge |  | 1 while it is switched on |
//! | `steadfast_chaos_injected_total` | counter | `injection` | faults on purpose: delayed, failed, replaced, hung, panicked |
//! | `steadfast_cache_requests_total` | counter | `result` | look-ups: hit, miss, stale |
//! | `steadfast_cache_remote_hits_total` | counter |  | misses that the remote tier had |
//! | `steadfast_cache_loads_total` | counter |  | loads begun |
//! | `steadfast_cache_load_failures_total` | counter |  | loads that failed or took too long |
//! | `steadfast_cache_superseded_total` | counter |  | loaded values that an invalidation overtook |
//! | `steadfast_cache_evictions_total` | counter |  | entries that made room for others |
//! | `steadfast_cache_invalidations_total` | counter |  | keys, tags and clears that were invalidated |
//! | `steadfast_cache_faults_total` | counter |  | failures of the remote tier and the backplane |
//! | `steadfast_cache_entries` | gauge |  | entries in the local tier |
//! | `steadfast_leader_election_is_leader` | gauge |  | 1 while this node leads |
//! | `steadfast_leader_election_healthy` | gauge |  | 0 where it leads and its renewal is overdue |
//! | `steadfast_leader_election_elected_total` | counter |  | terms that began |
//! | `steadfast_leader_election_ended_total` | counter | `why` | terms that ended |
//! | `steadfast_leader_election_call_failures_total` | counter |  | calls of the lease that failed |
//! | `steadfast_queue_listener_tasks` | gauge |  | tasks |
//! | `steadfast_queue_listener_in_flight` | gauge |  | handlers under way |
//! | `steadfast_queue_listener_buffered` | gauge |  | messages that were taken, and wait for a handler |
//! | `steadfast_queue_listener_depth` | gauge | `state` | what the queue held when it was last asked: visible, delayed, in_flight |
//! | `steadfast_queue_listener_paused` | gauge |  | 1 while it is paused |
//! | `steadfast_queue_listener_polls_total` | counter |  | requests for messages |
//! | `steadfast_queue_listener_empty_polls_total` | counter |  | those that found none |
//! | `steadfast_queue_listener_requests_total` | counter |  | requests to the queue of all kinds |
//! | `steadfast_queue_listener_messages_total` | counter | `event` | messages: received, handled, failed, dead_lettered, lease_lost, duplicate, released, refused |
//! | `steadfast_sharding_map_version` | gauge |  | the version of the map that this process goes by |
//! | `steadfast_sharding_map_changes_total` | counter |  | times that it got another map |
//! | `steadfast_sharding_refresh_failures_total` | counter |  | times that the map could not be read |
//! | `steadfast_sharding_steps_total` | counter |  | steps of moves that this process recorded |
//! | `steadfast_sharding_mover_failures_total` | counter |  | movers that failed |
//! | `steadfast_sharding_calls_total` | counter | `shard` | routed calls |
//!
//! # Example
//!
//! ```
//! use metrics_exporter_prometheus::PrometheusBuilder;
//! use steadfast::{Pipeline, circuit_breaker::{CircuitBreaker, CircuitBreakerConfig}, metrics::Metrics, time::Clock};
//!
//! let recorder = PrometheusBuilder::new().build_recorder();
//! let page = recorder.handle();
//! let metrics = Metrics::on(recorder); // or `Metrics::new()`, for the recorder that is installed
//!
//! let breaker = CircuitBreaker::new(CircuitBreakerConfig::default()).unwrap();
//! metrics.watch("payments", &breaker).unwrap();
//! let pipeline = Pipeline::new().then(metrics.calls("payments")).then(breaker.clone());
//!
//! let (_, hand) = Clock::manual();
//! hand.block_on(pipeline.call(async || Ok::<_, ()>("paid"))).unwrap();
//! breaker.isolate();
//!
//! let text = metrics.scrape(|| page.render()); // what a handler of `/metrics` answers
//! assert!(text.contains(r#"steadfast_calls_total{name="payments",outcome="success"} 1"#));
//! assert!(text.contains(r#"steadfast_circuit_breaker_state{name="payments",state="isolated"} 1"#));
//! assert!(text.contains(r#"steadfast_circuit_breaker_state{name="payments",state="closed"} 0"#));
//! ```
//!
//! # How it works
//!
//! Counters of events are counted where the event is sent, by the caller whose call it is: none is missed, however many come. Gauges, and the
//! counters that a policy keeps anyway, are read when somebody [records](Metrics::record): in the handler of `/metrics`
//! ([`scrape`](Metrics::scrape)), or every some seconds ([`run`](Metrics::run)) where an exporter pushes.
//!
//! # Composing
//!
//! [`Metrics::calls`] is a policy, for the calls that succeed: no other policy tells of those. Outermost it counts what callers see; a second one of
//! another name, innermost, what the other side does: between both stands what the policies are worth. A policy of your own is watched by one
//! trait, [`Measured`].
//!
//! # Cancel safety
//!
//! A call that is dropped counts as `cancelled`, and is no longer in flight.
//!
//! # Events
//!
//! None of its own.
//!
//! # Considerations
//!
//! Circuit breaker 10: its state is seen from outside, by a gauge for each state. (default) Throttling 8: a tenant's usage is a matter for the keyed
//! limiter; a label with a value for each tenant would make as many series.
//!
//! # Pitfalls
//!
//! A recorder is asked within the call, as a `tracing` subscriber is: it must be quick, and must not panic. A recorder that is installed
//! after something is watched hears nothing of it. A watched policy is kept alive. Gauges are as old as the last `record`; an exporter that
//! reads them on a thread of its own may do so between two of them.
//!
//! # Source
//!
//! Prometheus, "Metric and label naming". The states as one gauge each: resilience4j.
mod calls;
mod measured;
mod names;
mod registry;
mod words;

pub use calls::CallMeter;
pub use names::{NAMES, Of, Series};
pub use registry::{Measured, Metrics, Sample, Scope};
