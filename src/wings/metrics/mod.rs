//! Metrics of all policies, through the `metrics` facade. Enabled by feature `metrics`.
//!
//! [Events](crate::observe) report single occurrences; metrics are totals, levels and distributions
//! for dashboards and alarms.
//!
//! # When, and when not
//!
//! In a service with an exporter of the `metrics` facade (Prometheus, OpenTelemetry, StatsD). Only
//! what is [watched](Metrics::watch) is counted: a policy that is not watched costs what it did
//! before. To look at one policy now and then, its `snapshot`, `stats` or `state` is enough.
//!
//! # Defaults
//!
//! Each series has the label `name`, the name under which it is watched; a name belongs to one
//! policy of a kind. Metric names follow Prometheus: counters end in `_total`, times are in
//! seconds. An exporter of OpenTelemetry can use them unchanged. Label values come from closed
//! sets, except for features and shards, which are yours.
//!
//! | metric | | labels | meaning |
//! |---|---|---|---|
//! | `steadfast_calls_total` | counter | `outcome` | calls by outcome: success, failure, ignored, rejected, cancelled |
//! | `steadfast_call_duration_seconds` | histogram, s | `outcome` | duration of calls |
//! | `steadfast_calls_in_flight` | gauge |  | calls in flight |
//! | `steadfast_call_failures_total` | counter | `kind` | failed calls by kind of failure |
//! | `steadfast_call_rejections_total` | counter | `reason` | rejected calls by reason |
//! | `steadfast_timeout_timed_out_total` | counter |  | calls that exceeded the time-out and were dropped |
//! | `steadfast_retry_retries_total` | counter | `kind` | retries by the kind of the failure before |
//! | `steadfast_retry_recovered_total` | counter |  | calls that succeeded after at least one failed attempt |
//! | `steadfast_retry_gave_up_total` | counter | `reason` | calls that failed in the end, by the reason for no further attempt |
//! | `steadfast_retry_delay_seconds` | histogram, s |  | delay before a retry |
//! | `steadfast_retry_budget_balance` | gauge |  | retries that the budget permits now |
//! | `steadfast_circuit_breaker_state` | gauge | `state` | 1 for the current state, 0 for the others |
//! | `steadfast_circuit_breaker_transitions_total` | counter | `to` | state transitions by the new state |
//! | `steadfast_circuit_breaker_openings_total` | counter | `rule` | openings by the rule that opened the breaker |
//! | `steadfast_circuit_breaker_state_duration_seconds` | histogram, s | `state` | time spent in a state, recorded when the breaker leaves it |
//! | `steadfast_circuit_breaker_failures_total` | counter |  | failures of admitted calls |
//! | `steadfast_circuit_breaker_slow_total` | counter |  | slow calls |
//! | `steadfast_circuit_breaker_suppressed_total` | counter |  | openings suppressed because `max_open` was reached |
//! | `steadfast_circuit_breaker_rejected_total` | counter |  | calls that the breaker rejected |
//! | `steadfast_circuit_breaker_share` | gauge |  | share of calls that the breaker admits, from 0 to 1 |
//! | `steadfast_circuit_breaker_window_calls` | gauge |  | calls in the window |
//! | `steadfast_circuit_breaker_window_failures` | gauge |  | failed calls in the window |
//! | `steadfast_circuit_breaker_window_slow` | gauge |  | slow calls in the window |
//! | `steadfast_circuit_breaker_keys` | gauge | `state` | keys of a breaker registry by state |
//! | `steadfast_shared_breaker_store_up` | gauge |  | 1 while the store that shares the breaker's state answers, else 0 |
//! | `steadfast_shared_breaker_reports` | gauge |  | other processes that report their breaker as open |
//! | `steadfast_shared_breaker_events_total` | counter | `event` | events: reported, opened_with_others, store_failed, notifier_failed |
//! | `steadfast_throttling_rejected_total` | counter | `policy`, `reason` | calls that a limiter rejected |
//! | `steadfast_throttling_queued_total` | counter | `policy` | calls that had to wait for a limiter |
//! | `steadfast_throttling_wait_seconds` | histogram, s | `policy` | wait for a limiter, if known in advance |
//! | `steadfast_throttling_changed_total` | counter | `policy` | changes of a limit at run time |
//! | `steadfast_rate_limit_keys` | gauge |  | keys that a keyed rate limiter holds in memory |
//! | `steadfast_shared_limit_store_up` | gauge |  | 1 while the store of a shared rate limit answers, else 0 |
//! | `steadfast_shared_limit_leased` | gauge |  | permits leased in advance and not yet used |
//! | `steadfast_shared_limit_tenants` | gauge |  | tenants that this process knows |
//! | `steadfast_shared_limit_store_failures_total` | counter |  | failed calls to the store |
//! | `steadfast_shared_limit_leased_total` | counter |  | permits leased in advance |
//! | `steadfast_concurrency_limit_capacity` | gauge |  | maximum of concurrent calls |
//! | `steadfast_concurrency_limit_in_use` | gauge |  | permits in use |
//! | `steadfast_concurrency_limit_waiting` | gauge |  | calls in the queue |
//! | `steadfast_adaptive_limit_limit` | gauge |  | current limit of concurrent calls |
//! | `steadfast_adaptive_limit_in_flight` | gauge |  | calls in flight |
//! | `steadfast_adaptive_limit_waiting` | gauge |  | calls in the queue |
//! | `steadfast_adaptive_limit_base_latency_seconds` | gauge, s |  | estimated latency without queueing |
//! | `steadfast_shed_ratio` | gauge | `priority` | share of calls that are shed, from 0 to 1 |
//! | `steadfast_shed_began_total` | counter |  | starts of load shedding |
//! | `steadfast_client_throttle_requests` | gauge |  | requests in the window |
//! | `steadfast_client_throttle_accepts` | gauge |  | requests in the window that the server accepted |
//! | `steadfast_client_throttle_rejection_ratio` | gauge |  | probability that the next call is rejected locally, from 0 to 1 |
//! | `steadfast_degradation_features_off` | gauge |  | features that are switched off |
//! | `steadfast_degradation_switches_total` | counter | `feature`, `to` | switches of features, off and on |
//! | `steadfast_hedge_hedges_total` | counter | `cause` | hedged attempts by cause: late, failed |
//! | `steadfast_hedge_won_total` | counter |  | calls whose result came from a hedged attempt |
//! | `steadfast_hedge_suppressed_total` | counter | `reason` | hedged attempts that were due and not started |
//! | `steadfast_hedge_all_failed_total` | counter |  | calls with more than one attempt, all of which failed |
//! | `steadfast_hedge_delay_seconds` | gauge, s |  | current delay before a hedged attempt |
//! | `steadfast_fallback_calls_total` | counter | `outcome` | calls that needed the fallback: fell_back, failed, timed_out |
//! | `steadfast_coalesce_in_flight` | gauge |  | shared executions in flight |
//! | `steadfast_journal_entries_total` | counter | `event` | entries: deferred, defer_failed, replayed, failed, poisoned |
//! | `steadfast_chaos_enabled` | gauge |  | 1 while fault injection is enabled, else 0 |
//! | `steadfast_chaos_injected_total` | counter | `injection` | injected faults: delayed, failed, replaced, hung, panicked |
//! | `steadfast_cache_requests_total` | counter | `result` | cache look-ups: hit, miss, stale |
//! | `steadfast_cache_remote_hits_total` | counter |  | local misses that the remote tier served |
//! | `steadfast_cache_loads_total` | counter |  | loads started |
//! | `steadfast_cache_load_failures_total` | counter |  | loads that failed or timed out |
//! | `steadfast_cache_superseded_total` | counter |  | loaded values not cached because of an invalidation during the load |
//! | `steadfast_cache_evictions_total` | counter |  | entries evicted to make room |
//! | `steadfast_cache_invalidations_total` | counter |  | invalidations of keys and tags, and clears |
//! | `steadfast_cache_faults_total` | counter |  | failures of the remote tier and of the backplane |
//! | `steadfast_cache_entries` | gauge |  | entries in the local tier |
//! | `steadfast_leader_election_is_leader` | gauge |  | 1 while this node is the leader, else 0 |
//! | `steadfast_leader_election_healthy` | gauge |  | 0 while this node is the leader and its renewal is overdue, else 1 |
//! | `steadfast_leader_election_elected_total` | counter |  | terms that this node began as the leader |
//! | `steadfast_leader_election_ended_total` | counter | `reason` | terms of this node that ended, by reason |
//! | `steadfast_leader_election_call_failures_total` | counter |  | failed calls to the lease |
//! | `steadfast_queue_listener_tasks` | gauge |  | worker tasks |
//! | `steadfast_queue_listener_in_flight` | gauge |  | handlers in flight |
//! | `steadfast_queue_listener_buffered` | gauge |  | received messages that wait for a handler |
//! | `steadfast_queue_listener_held` | gauge |  | handled messages whose results wait for room in a full queue |
//! | `steadfast_queue_listener_depth` | gauge | `state` | messages in the queue at the last check: visible, delayed, in_flight |
//! | `steadfast_queue_listener_dead_letters` | gauge |  | dead letters of the queue at the last check |
//! | `steadfast_queue_listener_paused` | gauge |  | 1 while the listener is paused or all its queues are, else 0 |
//! | `steadfast_queue_listener_polls_total` | counter |  | receive requests |
//! | `steadfast_queue_listener_empty_polls_total` | counter |  | receive requests that returned no message |
//! | `steadfast_queue_listener_requests_total` | counter |  | requests of all kinds to the queue |
//! | `steadfast_queue_listener_messages_total` | counter | `event` | messages: received, handled, failed, dead_lettered, lease_lost, duplicate, released, refused, snoozed, cancelled |
//! | `steadfast_saga_events_total` | counter | `event` | sagas: started, taken_over, compensating, completed, compensated, stuck; superseded, incompatible, store_failed |
//! | `steadfast_saga_attempts_total` | counter | `outcome` | attempts of steps that did not complete: failed, abandoned, unknown, not_sent, refused, pending |
//! | `steadfast_saga_running` | gauge |  | sagas that this component runs now |
//! | `steadfast_scheduler_events_total` | counter | `event` | messages and sagas: resent, stranded, dead_lettered, reply_failed |
//! | `steadfast_filter_events_total` | counter | `event` | results to queues of other engines: send_failed, may_repeat |
//! | `steadfast_standard_part_on` | gauge | `part` | 1 while this part of a standard stack is on, else 0 |
//! | `steadfast_sharding_map_version` | gauge |  | version of the shard map that this process uses |
//! | `steadfast_sharding_map_changes_total` | counter |  | times that this process switched to a new map |
//! | `steadfast_sharding_refresh_failures_total` | counter |  | failed reads of the map |
//! | `steadfast_sharding_steps_total` | counter |  | steps of moves recorded by this process |
//! | `steadfast_sharding_mover_failures_total` | counter |  | failures of movers |
//! | `steadfast_sharding_calls_total` | counter | `shard` | routed calls by shard |
//! | `steadfast_stream_processor_events_total` | counter | `event` | partitions and events: claimed, released, careful, halted, skipped; attempt_failed, dead_lettered, call_failed |
//! | `steadfast_stream_processor_partitions` | gauge |  | partitions that this member owns |
//! | `steadfast_stream_processor_halted` | gauge |  | partitions of this member that need an operator |
//! | `steadfast_stream_processor_lag` | gauge |  | unfinished events in the partitions of this member |
//! | `steadfast_stream_processor_in_flight` | gauge |  | handlers in flight |
//!
//! # Example
//!
//! ```
//! use metrics_exporter_prometheus::PrometheusBuilder;
//! use steadfast::{
//!     Pipeline,
//!     circuit_breaker::{CircuitBreaker, CircuitBreakerConfig},
//!     metrics::Metrics,
//!     time::Clock,
//! };
//!
//! let recorder = PrometheusBuilder::new().build_recorder();
//! let page = recorder.handle();
//! let metrics = Metrics::on(recorder); // or `Metrics::new()`, for the installed recorder
//!
//! let breaker = CircuitBreaker::new(CircuitBreakerConfig::default()).unwrap();
//! metrics.watch("bank", &breaker).unwrap();
//! let pipeline = Pipeline::new().then(metrics.calls("bank")).then(breaker.clone());
//!
//! let (_, time) = Clock::manual();
//! time.block_on(pipeline.call(async || Ok::<_, ()>("paid"))).unwrap();
//! breaker.isolate();
//!
//! // The body that a handler of `/metrics` returns:
//! let text = metrics.scrape(|| page.render());
//! assert!(text.contains(r#"steadfast_calls_total{name="bank",outcome="success"} 1"#));
//! assert!(text.contains(r#"steadfast_circuit_breaker_state{name="bank",state="isolated"} 1"#));
//! assert!(text.contains(r#"steadfast_circuit_breaker_state{name="bank",state="closed"} 0"#));
//! ```
//!
//! # How it works
//!
//! Events are counted where they are sent, by the task whose call caused them, so that a flood of
//! events loses none. Gauges, and the counters that a policy keeps anyway, are read at each
//! [record](Metrics::record): in the handler of `/metrics` ([`scrape`](Metrics::scrape)), or
//! periodically for an exporter that pushes ([`run`](Metrics::run)).
//!
//! A [standard stack](crate::standard::Standard) is watched as a whole. Each part has its series
//! under the name of the stack, a dot and the part's name (`name="billing.retry"`), also while it
//! is off, so that a part that a new document switches on is counted from its first call. A
//! [registry](crate::standard::StandardRegistry) is watched with all stacks that it has or gets
//! (`name="services.search.retry"`, if it is watched as `services`). All such names are taken: a
//! stack of your own cannot be watched as `services.search`.
//!
//! # Composing
//!
//! [`Metrics::calls`] is a policy that counts calls, also those that succeed, which no other policy
//! reports. As the outermost policy it counts what callers see. A second meter with another name,
//! innermost, counts what the other side does; the difference is the effect of the policies between
//! them. Your own policy is watched by implementing one trait, [`Measured`].
//!
//! # Cancel safety
//!
//! A dropped call counts as `cancelled`, and is no longer in flight.
//!
//! # Events
//!
//! None.
//!
//! # Pitfalls
//!
//! A recorder is called within the call, as a `tracing` subscriber is: it must be quick, and must
//! not panic. A recorder that is installed after [`watch`](Metrics::watch) receives nothing of what
//! was watched before. [`Metrics`] keeps a watched policy alive. Gauges are as old as the last
//! `record`; an exporter that reads them on a thread of its own may do so between two records.
//!
//! # Source
//!
//! Prometheus, "Metric and label naming". A gauge for each state: resilience4j.
mod calls;
mod measured;
mod names;
mod registry;
mod words;

pub use calls::CallMeter;
// For the test that compares the table above with the code.
#[doc(hidden)]
pub use names::{MetricKind, NAMES, Series};
pub use registry::{Measured, Metrics, Sample, Scope};
