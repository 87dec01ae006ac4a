//! Reconfiguration of a running process: a change of several parts takes effect in all of them, or
//! in none. And of a fleet: one stage after another, with a return by itself.
//!
//! # When, and when not
//!
//! Use it where downtime must be avoided, where settings change often, or where a log level must
//! rise while a fault is looked for. Components that take their settings when they start, and can
//! be away for a moment, need a restart only.
//!
//! # Defaults
//!
//! | setting | default | |
//! |---|---|---|
//! | `bake` | none | time of health after which a change is final |
//! | `bake` of a roll-out | 60 s | time for which all members of a stage must be well |
//! | `look_interval` of a roll-out | 5 s | between two looks at the members |
//!
//! | change | effect |
//! |---|---|
//! | of a section of a [`part`](crate::Builder#method.part) | `validate` of all changed parts, then `apply` in their order |
//! | of a section of a [`restart`](crate::Builder#method.restart) | a restart of the child, after all parts have changed |
//! | outside of all sections | refused |
//!
//! # Example
//!
//! ```
//! use std::time::Duration;
//! use steadfast::{
//!     hedge::{Hedge, HedgeConfig},
//!     reconfiguration::{Reconfigurer, ReconfigurerConfig, SubmitError},
//!     retry::{Retry, RetryConfig},
//! };
//!
//! #[derive(Clone, PartialEq)]
//! struct Settings { retry: RetryConfig, hedge: HedgeConfig, title: &'static str }
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let hedge = HedgeConfig::after(Duration::from_secs(1));
//! let first = Settings { retry: RetryConfig::default(), hedge, title: "shop" };
//! let retry = Retry::new(first.retry.clone())?;
//! let hedge = Hedge::new(first.hedge.clone())?;
//! let changes = Reconfigurer::builder(first.clone(), ReconfigurerConfig::default())
//!     .part("retry", |s: &mut Settings| &mut s.retry, retry.clone())
//!     .part("hedge", |s: &mut Settings| &mut s.hedge, hedge.clone())
//!     .build()?;
//!
//! let mut next = first.clone();
//! next.retry = next.retry.max_attempts(5);
//! assert_eq!(changes.submit(next.clone()).await?.parts, ["retry"]);
//! assert_eq!(retry.config().max_attempts, 5);
//!
//! // One part refuses its section, and nothing has changed.
//! let mut bad = next.clone();
//! bad.retry = bad.retry.max_attempts(0);
//! let error = changes.submit(bad).await.unwrap_err();
//! let SubmitError::Vetoed { part, error } = error else { unreachable!() };
//! assert_eq!((part.as_str(), error.field()), ("retry", "max_attempts"));
//!
//! // No part would take this before the next start.
//! let title = Settings { title: "store", ..next };
//! assert!(matches!(changes.submit(title).await, Err(SubmitError::Undeclared { .. })));
//! # Ok(())
//! # }
//! ```
//!
//! # The five commonest uses
//!
//! ```
//! use std::{sync::Arc, time::Duration};
//! use steadfast::{
//!     config_store::{Change, ConfigPublisher, ConfigStore, Documents, watch_file},
//!     health::{Health, HealthConfig},
//!     reconfiguration::{InEffect, Reconfigurer, ReconfigurerConfig, Rollout, RolloutConfig},
//!     retry::{Retry, RetryConfig},
//!     store::InMemoryStore,
//!     supervisor::{Child, ChildContext, Supervisor, SupervisorConfig},
//! };
//!
//! type BoxError = Box<dyn std::error::Error + Send + Sync>;
//!
//! fn load(documents: &Documents) -> Result<RetryConfig, BoxError> {
//!     Ok(toml::from_str(documents.text("billing")?)?)
//! }
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), BoxError> {
//! # let store = Arc::new(InMemoryStore::new());
//! # let publisher = ConfigPublisher::builder(store.clone(), "shop", Default::default()).build()?;
//! # publisher.publish(Change::to("billing", "max_attempts = 3")).await?;
//! # let settings = ConfigStore::builder(store, "shop", load, Default::default());
//! # let settings = settings.layers(["billing"]).build().await?;
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("service.toml");
//! # std::fs::write(&path, "max_attempts = 9")?;
//! // 1. Undo what makes the process unhealthy, and report a change that is applied in part.
//! let in_effect = InEffect::new(settings.current().value().clone());
//! let whole = in_effect.check("settings");
//! let health = Health::builder(HealthConfig::default()).check(whole).build()?;
//! let retry = Retry::new(RetryConfig::default())?;
//! let bakes = ReconfigurerConfig::default().bake(Duration::from_secs(60));
//! let changes = Reconfigurer::builder(in_effect, bakes)
//!     .part("retry", |s: &mut RetryConfig| s, retry.clone())
//!     .health(&health)
//!     .build()?;
//!
//! // 2. From a configuration store. A change that a part refuses is a veto.
//! # publisher.publish(Change::to("billing", "max_attempts = 7")).await?;
//! # let shutdown = health.run(tokio::time::sleep(Duration::from_secs(200)));
//! settings
//!     .run(shutdown, |next| {
//!         let changes = changes.clone();
//!         async move { changes.submit(next.value().clone()).await }
//!     })
//!     .await;
//! assert_eq!(retry.config().max_attempts, 7);
//!
//! // 3. From a file that the platform mounts, without a store.
//! let simple = Reconfigurer::builder(retry.config(), ReconfigurerConfig::default())
//!     .part("retry", |s: &mut RetryConfig| s, retry.clone())
//!     .build()?;
//! let text = watch_file(&path, Duration::from_secs(5)).changed().await?;
//! simple.submit(toml::from_str(&text)?).await?;
//! assert_eq!(retry.config().max_attempts, 9);
//!
//! // 4. A child that takes its settings when it starts is restarted, after all other parts.
//! let in_effect = InEffect::new(4_u32);
//! let workers = in_effect.clone();
//! let child = Child::new("workers", move |cx: ChildContext| {
//!     let number = *workers.get();
//!     async move {
//!         assert!(number > 0);
//!         cx.stopping().await;
//!         Ok::<_, BoxError>(())
//!     }
//! });
//! let supervisor = Supervisor::builder(SupervisorConfig::default()).child(child).build()?;
//! let restarts = Reconfigurer::builder(in_effect, ReconfigurerConfig::default())
//!     .restart("workers", |s: &mut u32| s, supervisor.handle("workers")?)
//!     .build()?;
//!
//! // 5. Over a fleet, stage by stage: it needs processes with a member's name.
//! let rollout = Rollout::new(&publisher, RolloutConfig::default())?;
//! let change = Change::to("billing", "max_attempts = 5").by("ada").staged([0.05, 0.5, 1.0]);
//! let ended = rollout.run(change).await;
//! # assert!(ended.is_err());
//! # drop(restarts);
//! # Ok(())
//! # }
//! ```
//!
//! # Roll-outs
//!
//! A [`Rollout`] publishes a change for a share of the processes, and goes on when these have run
//! it and been healthy for `bake`. Each process that has a
//! [member's name](crate::config_store::ConfigStoreBuilder::member) draws a lot by its name and the
//! number of the change, so that another change has other canaries. The head has the threshold.
//!
//! ```
//! # use steadfast::config_store::{Change, ConfigPublisher};
//! # use steadfast::reconfiguration::{Rollout, RolloutConfig, RolloutError};
//! # async fn roll_out(publisher: &ConfigPublisher) -> Result<(), Box<dyn std::error::Error>> {
//! let rollout = Rollout::new(publisher, RolloutConfig::default())?;
//! let change = Change::to("billing", "retries = 5").by("ada").because("promo");
//! match rollout.run(change.staged([0.05, 0.5, 1.0])).await {
//!     Ok(number) => println!("revision {number} is in effect for all"),
//!     Err(RolloutError::Aborted { member, reason, .. }) => {
//!         println!("all return: {member} {}", reason.as_str());
//!     }
//!     Err(error) => return Err(error.into()),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! | seen at a member of the stage | the driver |
//! |---|---|
//! | runs the number, and is healthy | goes on when all have done so for `bake` |
//! | refuses or has quarantined it, is unhealthy, or is gone | aborts: all return to the number before |
//! | has started again | begins the time of the stage anew |
//! | nothing, because the store is away | waits, and begins the time anew |
//! | no member at all | enters no stage; aborts a stage that stays empty for `bake` |
//!
//! # Composing
//!
//! Anything that is [`Reconfigure`](crate::config::Reconfigure) is a part; the settings of one's
//! own code are, too. A child of a [`supervisor`](crate::supervisor) that reads its section of
//! [`InEffect`] when it starts is a part by its handle. [`InEffect::check`] belongs to
//! [`health`](crate::health): a process whose parts differ is unhealthy. `submit` is called by a
//! configuration store, by [`watch_file`](crate::config_store::watch_file), or by code that reacts
//! to something else, such as errors that raise the log level, or a season.
//!
//! # Guarantees
//!
//! 1. `submit` validates all changed sections before any part applies one. After one veto, with
//!    part and field, nothing has changed. Parts whose sections are equal are not touched.
//! 2. A change outside of all parts is refused.
//! 3. If a part fails, those before it get their old settings, in reverse. If that fails, too, the
//!    error is [`PartiallyApplied`](SubmitError::PartiallyApplied), and the check of
//!    [`InEffect`] fails until a change succeeds. Children restart last; a part that needs a
//!    restart and has no child is refused.
//! 4. One change is in progress at a time. Of those that wait the newest goes on, the others are
//!    [`Superseded`](SubmitError::Superseded). A part that submits a change while it is called is
//!    refused. A dropped `submit` is undone, unless it was complete. Calls go on meanwhile.
//! 5. With `bake`, a process that becomes unhealthy within that time has its old settings again.
//! 6. A process takes a staged number only while its lot is below the threshold. The next stage
//!    begins when all members of the stage before have run the number and been healthy for `bake`.
//!    One that refuses, has quarantined it, is unhealthy or has vanished ends the roll-out: all
//!    return to the number before. The aborted number is never used again.
//! 7. A new driver goes on at the recorded stage, and several do no harm. `advance` and `abort`
//!    work by hand. No stage begins while the store is away.
//!
//! Refused: no parts, a name twice, `bake` without `health`; stages that do not grow to 1, a
//! roll-out without members, or on a store without times to live, as NATS is before 2.11.
//!
//! # Cancel safety
//!
//! A dropped [`submit`](Reconfigurer::submit) is undone, unless it was complete. A dropped
//! [`run`](Rollout::run) or [`resume`](Rollout::resume) leaves the roll-out at its stage.
//!
//! # Events
//!
//! The variants of [`ReconfigurerEvent`]: applied, refused, rolled back, partially applied. Those
//! of [`RolloutEvent`]: stage entered, completed, aborted.
//!
//! # Pitfalls
//!
//! - A change of a section that is valid for itself may not fit to another one. Check what belongs
//!   together in one part, or in the loader.
//! - Values that a component derived from old settings belong to its `apply`, which throws them
//!   away.
//! - All processes that take a change at the same moment also restart their children at the same
//!   moment.
//! - Processes without a member's name take a change when it is in effect for all.
//! - A process that was not seen when a stage was entered belongs to it by a low lot. So a stage
//!   may be larger than its share of those that were.
//! - A `bake` of a roll-out below 30 s ends before a process that has died is seen as gone.
//! - `bake` sees what [`Health::is_fit`](crate::health::Health::is_fit) sees: its watch must run.
//!
//! # Source
//!
//! "Runtime Reconfiguration", Cloud Design Patterns. That a change which nothing would take is
//! refused is its warning of changes that take effect at the next restart.
mod component;
mod config;
mod event;
mod in_effect;
mod rollout;
mod stages;
mod transaction;

#[cfg(all(test, not(steadfast_loom)))]
mod tests;

pub use component::{Applied, Reconfigurer, SubmitError};
pub use config::{ReconfigurerConfig, RolloutConfig};
pub use event::{ReconfigurerEvent, RolloutEvent};
pub use in_effect::InEffect;
pub use rollout::{Rollout, RolloutError, StagedChange};
pub use stages::AbortReason;
