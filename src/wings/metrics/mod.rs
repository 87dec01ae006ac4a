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
#![doc = include_str!("table.md")]
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
//! # A board and alerts
//!
//! The package has [a board for Grafana][board]: import it, and choose the data source of
//! Prometheus. Its first row answers "is anything wrong?"; a figure that is not green leads to its
//! page. Then follow calls, breakers, limits, queues, sagas, streams, caches and elections, by name
//! and process. Durations come from summaries, as the Prometheus exporter writes them by default,
//! or from histograms, if it has buckets.
//!
//! It has [ten alerts][alerts], too: name the file in `rule_files` of Prometheus. Each says what it
//! means and what to do, and has the reason of its threshold beside it. They look at all
//! processes of a `job` together, so elections and queues of one name need one job. Two figures are
//! estimates: the wait of messages is the depth divided by the rate at which they are handled, and
//! stuck sagas are those of the last hour ([`Saga::list_open`](crate::saga::Saga::list_open) lists
//! all).
//!
//! [board]: https://docs.rs/crate/steadfast/latest/source/docs/grafana/steadfast.json
//! [alerts]: https://docs.rs/crate/steadfast/latest/source/docs/prometheus/alerts.yaml
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
// For the test that compares the table above with what is registered.
#[doc(hidden)]
pub use names::{MetricKind, Series, series};
pub use registry::{Measured, Metrics, Sample, Scope};
