//! Health: what load balancers, platforms and monitors are told, by checks that run once for all of
//! them.
//!
//! # When, and when not
//!
//! Use it for each service behind a load balancer or on a platform that restarts processes. It
//! stands beside logs and metrics, and not in their place. A job that nobody sends requests to
//! needs liveness alone. Health of a call's target belongs to a
//! [`circuit_breaker`](crate::circuit_breaker), which sees each call.
//!
//! # Defaults
//!
//! | setting | default | |
//! |---|---|---|
//! | `timeout` | 800 ms | time limit of one execution of a check |
//! | `cache_ttl` | 5 s | time for which a result serves all reports |
//! | `failure_threshold` | 3 | failures in a row that make a check unhealthy |
//! | `success_threshold` | 2 | successes in a row that make it healthy |
//! | `stale_after` | 15 s | age from which a result is a failure |
//! | `report_timeout` | 500 ms | longest wait of a report |
//! | `drain_delay` | 5 s | time from the end of readiness to the stop |
//! | `max_ejected` | 0.5 | share of a fleet that may leave because of dependencies |
//! | `secret` | none | what a request shows to see details |
//! | `previous_secret` | none | the secret before, while monitors still send it |
//!
//! | group | question | its failure |
//! |---|---|---|
//! | liveness | Would a restart help? | restarts the process: local checks alone |
//! | readiness | Should requests come? | takes the process out of the load balancer |
//! | startup | Has it started? | delays the other two, then restarts the process: local checks alone |
//! | a tag of yours | | is up to its reader |
//!
//! # Example
//!
//! ```
//! use steadfast::health::{Check, Group, Health, HealthConfig, HealthStatus};
//!
//! async fn ping_database() -> Result<(), std::io::Error> { Ok(()) }
//! async fn look_for_space() -> Result<(), String> { Ok(()) }
//! async fn heartbeat_of_worker() -> Result<(), String> { Ok(()) }
//! async fn ping_mailer() -> Result<(), String> { Err("connection refused".to_owned()) }
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), steadfast::ConfigError> {
//! let health = Health::builder(HealthConfig::default())
//!     .check(Check::dependency("orders-db", ping_database).required())
//!     .check(Check::dependency("mailer", ping_mailer)) // orders are taken without it
//!     .check(Check::local("disk", look_for_space)) // a restart frees no space
//!     .check(Check::local("worker", heartbeat_of_worker).in_group(Group::Liveness))
//!     .build()?;
//!
//! let report = health.report(&Group::Readiness).await;
//! assert_eq!(report.status, HealthStatus::Degraded); // 200, and the word `degraded`
//! assert_eq!(health.report(&Group::Liveness).await.status, HealthStatus::Healthy);
//! # Ok(())
//! # }
//! ```
//!
//! With the feature `http`, `Health::answer` makes the answer for any server, such as axum's:
//!
//! ```text
//! async fn livez(State(health): State<Health>, headers: HeaderMap) -> Response<Body> {
//!     health.answer(&Group::Liveness, &headers).await
//! }
//! ```
//!
//! As curl shows it, of the example `axum_service`, and of the headers those that are ours:
//!
//! ```text
//! $ curl -i -H 'x-health-secret: open-sesame' -H 'x-health-nonce: 7f3a' shop:8641/readyz
//! HTTP/1.1 200 OK
//! cache-control: no-store
//! content-type: text/plain; charset=utf-8
//!
//! healthy
//! stock dependency healthy ok latency 1.2µs age 312ms
//! nonce 7f3a
//! ```
//!
//! | request | code and body |
//! |---|---|
//! | anonymous | 200 `healthy`, 200 `degraded` or 503 `unhealthy` |
//! | with the secret | 200 or 503, and a line for each check: `orders-db dependency unhealthy timed_out latency 800ms age 2s` |
//! | with a wrong secret | 404 without a body, as for an unknown path |
//!
//! Each other answer has `cache-control: no-store` and `content-type: text/plain; charset=utf-8`.
//!
//! # The five commonest uses
//!
//! ```
//! use std::sync::Arc;
//! use steadfast::{
//!     config::Secret,
//!     health::{Check, Group, Health, HealthConfig},
//!     leader_election::{LeaderElection, LeaderElectionConfig},
//!     lease::StoreLease,
//!     store::InMemoryStore,
//! };
//!
//! # async fn ping() -> Result<(), String> { Ok(()) }
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let stop = || tokio::time::sleep(std::time::Duration::from_secs(30));
//! let store = Arc::new(InMemoryStore::new()); // in a service, one that all members share
//! let built = Health::builder(HealthConfig::default()).name("shop");
//!
//! // 1. A fleet: half of its members at most leave because of the database.
//! let database = Check::dependency("orders-db", ping).required();
//! let built = built.check(database).fleet(store.clone(), "eu-1");
//!
//! // 2. Details for a monitor.
//! let health = built.secret(Secret::new("from-the-environment")).build()?;
//!
//! // 3. Watch without reports, too; a fleet needs it.
//! let watch = health.clone();
//! tokio::spawn(async move { watch.run(stop()).await });
//!
//! // 4. Not ready first, then stop: load balancers have time to notice.
//! let last = health.clone();
//! let shutdown = async move {
//!     stop().await;
//!     last.stopping().await;
//! };
//! # drop(shutdown);
//!
//! // 5. A leader that is not fit resigns.
//! let fit = health.clone();
//! let leases = Arc::new(StoreLease::builder(store).build()?);
//! let election = LeaderElection::builder(leases, "job", LeaderElectionConfig::default())
//!     .health_check(move || fit.is_fit())
//!     .build()?;
//! # drop((election, health.report(&Group::Readiness).await));
//! # Ok(())
//! # }
//! ```
//!
//! # Fleets
//!
//! If each member left when a shared database fails, the load balancer would have no target, and
//! nobody would answer even what needs no database. So the members of a fleet of `n` have
//! `floor(max_ejected * n)` slots, as rows of a store with times to live. A member leaves because
//! of a dependency only while it holds a slot; the others stay as
//! [`Degraded`](HealthStatus::Degraded). Each member renews a row of its own every 10 s, which
//! expires after 30 s. The store should not be the dependency that fails: if it does not answer, no
//! dependency ejects a member.
//!
//! # Seen from outside
//!
//! With the feature `prober`, a `Prober` in another place asks services as their users do, by
//! `GET`. It does so on a new connection each time, with a new TLS session and without a proxy:
//!
//! ```text
//! let prober = Prober::builder(ProberConfig::default())
//!     .target(Target::new("ada", "https://ada.shop.example/readyz").text("healthy"))
//!     .target(Target::new("bob", "https://bob.shop.example/readyz").text("healthy"))
//!     .known_good(Target::new("good", "https://status.example/good").text("all is well"))
//!     .known_bad(Target::new("bad", "https://ada.shop.example/no-such-page").text("healthy"))
//!     .build()?;
//! let round = prober.round().await;
//! ```
//!
//! | setting | default | |
//! |---|---|---|
//! | `interval` | 1 min | time between the starts of two rounds of `run` |
//! | `timeout` | 10 s | time limit of one probe, with look-up and body |
//! | `certificate_warning` | 21 days | time before the end of a certificate from which its target is degraded |
//! | `certificate_failure` | 7 days | time before that end from which its target is unhealthy |
//!
//! | report on a target | |
//! |---|---|
//! | `status`, `failure` | healthy, degraded or unhealthy, and the first reason for that |
//! | `code` | status code of the answer; another one than 200 is a failure unless it is expected |
//! | `latency`, `look_up` | time of the answer, and before it of the look-up of the name |
//! | `days_left` | whole days to the end of the certificate, whatever the answer was |
//!
//! # Composing
//!
//! [`Health::stopping`] runs before a supervisor or a listener is told to stop. A check calls out
//! without retries: the thresholds are there for single failures. The state of a breaker is a check
//! that costs nothing. `Prober::ask` is the probe of a breaker's
//! [`run`](crate::circuit_breaker::CircuitBreaker::run).
//!
//! # Guarantees
//!
//! 1. However many reports there are, each check runs once in `cache_ttl`, in one execution for
//!    all. A report waits for `report_timeout` at most, then it uses the last result. A check that
//!    hangs is dropped after `timeout` and does not pile up; one that panics has failed.
//! 2. Liveness and startup refuse checks of dependencies. A check that is not required makes its
//!    groups degraded at worst.
//! 3. `failure_threshold` failures in a row make a check unhealthy, `success_threshold` successes
//!    healthy; the first result counts at once. A result older than `stale_after` is a failure.
//!    After [`stopping`](Health::stopping) readiness is unhealthy, and liveness is as it was.
//! 4. Of a fleet no more members count themselves as ejected because of dependencies than it has
//!    slots. A local failure always ejects, and a member that was never ready is not ready. Members
//!    that serve nothing for such a reason, or stop, are not counted and hold no slot. If the store
//!    or the members are unknown, a dependency ejects nobody.
//! 5. An anonymous answer is one word. Details need the secret, and a wrong one is answered as an
//!    unknown path. No report and no answer has the text of an error: events have it. The secret is
//!    shown nowhere, and replaced in use: the one before is accepted as long as it is set.
//!    [`explain`](Health::explain) warns of that, and of a fleet without [`run`](Health::run).
//! 6. [`is_fit`](Health::is_fit) tells the last readiness without executing anything.
//! 7. A probe of a `Prober` finds its target healthy by the expected status, text and addresses
//!    alone, within `timeout`. It tells its latency, and apart from it the time of the look-up.
//!    Nothing is sent to an unexpected address, and nothing to a proxy. No event, report or `Debug`
//!    shows the path, the query or the password of a target. `Prober::explain` warns of a target
//!    without text, and of rounds that may take longer than `interval`.
//! 8. Each round asks all targets, and before and after them a known good one and a known bad one.
//!    The bad one must fail by its status or its text. If either of the known ones is misjudged,
//!    the round is inconclusive, and no status of a target changes. `Prober::ask` waits for no
//!    round.
//! 9. A target whose certificate ends within `certificate_warning` is degraded, within
//!    `certificate_failure` unhealthy. The server shows and proves its certificate in each probe.
//!
//! # Cancel safety
//!
//! A dropped [`report`](Health::report) leaves the execution to another report, or to the spawner.
//! After a dropped [`run`](Health::run) results become stale, and the member's rows expire. A
//! dropped round of a `Prober` closes its connections and records nothing. A look-up of a name by
//! the system goes on until the system has answered.
//!
//! # Events
//!
//! The variants of [`HealthEvent`]: check failed (with the text of the error), changed, ejected,
//! stayed, returned, store failed, store back, too many members, stopping, configuration changed.
//! Of `ProberEvent`: probe failed (with the text of the error), changed, inconclusive.
//!
//! # Pitfalls
//!
//! - A probe whose time limit is below `report_timeout` may give up before the answer.
//! - A check that does more than it must is called every `cache_ttl` by each member.
//! - Without [`run`](Health::run) and without reports, results become stale, and nothing is fit.
//! - A fleet of one has no slot: it always stays. With [`max_ejected`](HealthConfig::max_ejected)
//!   1.0 all may leave.
//! - If members leave the fleet for good, more members may be ejected than the smaller fleet has
//!   slots, for 45 s or so: until their rows have expired, and the others have renewed their slots.
//! - Without [`run`](Health::run), no dependency ejects a member of a fleet: `explain` says so.
//! - Probes of platforms and balancers must send no secret: they take the 404 of a wrong one for a
//!   failure.
//! - A check that blocks its thread stops the report that executes it; others use the last result.
//! - A known bad target that does not answer makes each round inconclusive: take a missing page of
//!   a server that is well.
//! - A prober beside its services sees neither their network nor that of their users. An expired
//!   certificate is no answer, since TLS refuses it: `certificate_failure` is there to come first.
//! - The path of a probe is public unless your network says otherwise: answer on an address of its
//!   own where you can.
//!
//! # Source
//!
//! "Health Endpoint Monitoring", Cloud Design Patterns. Liveness, readiness and startup are the
//! probes of Kubernetes; that some targets stay although all look bad is the panic threshold of
//! Envoy. The serialized report has the terms of the draft "Health Check Response Format for HTTP
//! APIs".
mod check;
mod component;
mod config;
mod event;
mod fleet;
#[cfg(feature = "prober")]
mod prober;
mod state;

#[cfg(all(test, not(steadfast_loom)))]
mod tests;

pub use check::{Check, CheckKind, Group};
pub use component::Health;
pub use config::HealthConfig;
pub use event::HealthEvent;
#[cfg(feature = "prober")]
pub use prober::{
    ProbeError, ProbeFailure, ProbeReport, Prober, ProberConfig, ProberEvent, Round, RoundOutcome, Target,
};
pub use state::{CheckFailure, CheckReport, GroupReason, HealthStatus, Report};
