//! One page for the people who run a service: what is wrong, what everything does, and the actions
//! of an operator. Enabled by feature `console`.
//!
//! Metrics and alerts tell that something is wrong, over all processes and over months. The console
//! shows one process now, in the words of its components, and it acts. Its page follows the scheme
//! of colours of the browser, and fits a telephone:
//!
//! <img width="600" alt="The first page of the console in dark colours"
//!  src="https://docs.rs/crate/steadfast/latest/source/docs/console-dark.png">
//! <img width="212" alt="The same page on a narrow screen, in light colours"
//!  src="https://docs.rs/crate/steadfast/latest/source/docs/console-narrow.png">
//!
//! # When, and when not
//!
//! For a service that an operator must look into: stuck sagas, dead letters, an open breaker. It is
//! a route of the service itself, so it needs no deployment and no store of its own. It is not a
//! history: a chart begins when a viewer looks. Against the open internet, put it behind the same
//! login as your other tools.
//!
//! # Defaults
//!
//! | question | by default | otherwise |
//! |---|---|---|
//! | Who may see, who may act? | `build` is refused | [`authorize`](Console::builder), [`open`](Console::builder) |
//! | Under which names does it answer? | with `authorize` under all; with `open` as this machine or by an IP address | [`hosts`](Console::builder) |
//! | How often is a component read? | at most once a second for all viewers, and not while nobody looks | `refresh` |
//! | And one whose read-out asks an engine? | at most every 5 s, and after ten times what the last one took | `engine_refresh` |
//! | How long may a read-out take? | 2 s, then the component shows as away | `read_timeout` |
//! | How many pages are updated live? | 64, others reload | `max_viewers` |
//! | Are bodies of messages shown? | the first 4 KiB | [`hide_bodies`](Console::builder) |
//!
//! | component | shown | actions |
//! |---|---|---|
//! | [`Pipeline`](crate::Pipeline), [`BoxedPipeline`](crate::BoxedPipeline), [`Standard`](crate::standard::Standard) | layers in their order, each with its state, figures, refusals and settings; warnings; with [`Calls`] also rate, failures, refusals by reason, median and 99th percentile, over the last 15 minutes | those of each layer, which is a part of the pipeline |
//! | [`CircuitBreaker`](crate::circuit_breaker::CircuitBreaker) | state with the rule that opened it and the time of its next probe, window, totals | isolate, close, reset, shadow mode |
//! | [`KeyedBreakers`](crate::circuit_breaker::KeyedBreakers) | number of keys by state; 50 keys, open ones first | those of a breaker, for each key |
//! | [`Calls`], a policy | as in its pipeline | |
//! | [`Retry`](crate::retry::Retry), [`Hedge`](crate::hedge::Hedge), [`Timeout`](crate::timeout::Timeout), [`Fallback`](crate::fallback::Fallback) | what they did in the last 15 minutes by its reason, and what their budget permits | |
//! | [`RetryBudget`](crate::retry::RetryBudget) | retries that it permits now | |
//! | [`RateLimiter`](crate::throttling::RateLimiter), [`ClientThrottle`](crate::throttling::ClientThrottle) | use and room, refusals of the last 15 minutes | |
//! | [`KeyedRateLimiter`](crate::throttling::KeyedRateLimiter) | 50 keys, those with the least room first | |
//! | [`ConcurrencyLimiter`](crate::throttling::ConcurrencyLimiter), [`AdaptiveLimiter`](crate::throttling::AdaptiveLimiter), [`Shedder`](crate::throttling::Shedder) | use and room | |
//! | [`queue`](Console::builder) | depth, age, messages, dead letters with errors and bodies | redrive all or one, delete those that are listed; with a `control` also pause, resume, cancel a message |
//! | `QueueListener` | tasks, counts, settings | pause, resume |
//! | `Saga` | open and stuck sagas; one with its steps, attempts and notes | retry, skip, undo, cancel, wake |
//! | `StreamProcessor` | partitions with owner, offset, lag, lost events, and halts of this process; number of dead letters | resume a partition |
//! | `LeaderElection` | leader and token, as this process last saw them; the end of its own term | ask to resign |
//! | `CacheAside` | hits, loads, stale values; tiers with their state and faults | |
//! | `ShardDirectory` | map and move | |
//! | all with a method `reconfigure` | settings in effect | change the settings |
//!
//! # Example
//!
//! ```
//! use http::request::Parts;
//! use steadfast::{
//!     circuit_breaker::{CircuitBreaker, CircuitBreakerConfig},
//!     console::{Access, Console, ConsoleConfig},
//!     queue::InMemoryQueue,
//! };
//!
//! fn rights(request: &Parts) -> Access {
//!     // Here, of a proxy that has checked the login, and overwrites these headers.
//!     let header = |name| request.headers.get(name).and_then(|value| value.to_str().ok());
//!     match (header("x-user"), header("x-role")) {
//!         (Some(user), Some("operator")) => Access::Operate(user.to_owned()),
//!         (Some(user), _) => Access::Read(user.to_owned()),
//!         (None, _) => Access::None,
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let payments = CircuitBreaker::new(CircuitBreakerConfig::default())?;
//! let console = Console::builder(ConsoleConfig::default())
//!     .name("shop")
//!     .watch("payments", &payments)
//!     .queue("deliveries", InMemoryQueue::new("deliveries"))
//!     .authorize(rights)
//!     .build()?;
//!
//! // A route of axum; hyper and tonic take the same service.
//! let app: axum::Router = axum::Router::new().nest_service("/console", console.clone());
//! # let _ = app;
//!
//! payments.isolate();
//! let request = http::Request::get("/state.json").header("x-user", "ann").body(String::new())?;
//! let response = tower_service::Service::call(&mut console.clone(), request).await?;
//! let state = http_body_util::BodyExt::collect(response.into_body()).await?.to_bytes();
//! let state: serde_json::Value = serde_json::from_slice(&state)?;
//! assert_eq!(state["components"][0]["state"], "isolated");
//! assert_eq!(state["components"][1]["facts"][0][0], "visible");
//!
//! // Closed by default:
//! let error = Console::builder(ConsoleConfig::default()).build().unwrap_err();
//! assert_eq!(error.field(), "authorize");
//! # Ok(())
//! # }
//! ```
//!
//! # How it works
//!
//! All addresses of the console are queries (`?component=payments`), so it works under any path
//! without knowing it. `state.json` below that path has what the page shows, for scripts, without
//! the charts that the console draws itself. `version` is raised when a field changes its meaning
//! or goes.
//!
//! A viewer reads a component only if the last read-out is older than `refresh`; everyone who asks
//! meanwhile shares one read-out, which is a task of its own. A part of a component, such as one
//! saga, is read in the same way; at most 64 are kept and 16 read at a time. Live updates are
//! server-sent events: one in `refresh` at most, none while nothing has changed, and a sign of life
//! each 15 s. A tab in the background closes its stream. While text is selected, the headline alone
//! is updated. Each stream ends after five minutes, so that its rights are checked again.
//!
//! An action has three steps: its link leads to a page that states what will happen and to how
//! many; that page's form states the version of the state that it was made for, and the last action
//! before; the console reads the component anew, and acts only if both are the same. Dead letters
//! that come meanwhile are no conflict: a redrive sends no more than were told, and a deletion
//! deletes those that were listed. Of more than 20 letters, it deletes as many as were told, in the
//! order in which the queue delivers them. The form has an id: if it is sent again, because its
//! answer was lost, it gets the result of the first time. To pause, resume, wake and cancel is
//! possible while another action runs.
//!
//! Settings are edited as TOML, one a line, without secrets. Before anything changes, the component
//! validates them, and a page shows the difference; an error names the setting or the line. The
//! change holds for this process, until it restarts or gets other settings. Two operators who edit
//! the same settings are told, and so is one whose settings code has changed meanwhile. A part of a
//! `Standard` stack has the settings of the stack.
//!
//! The read-out of a queue makes five calls, which some engines make of several requests; many
//! engines count the messages one by one. That of a saga reads the index of open sagas up to 1,000,
//! that of a stream makes two scans, one request for each partition and one for its dead letters.
//! All others cost none. The page of an action, and the action itself, read once more, past what
//! the viewers share.
//!
//! # Composing
//!
//! [`Calls`] as the outermost policy of a pipeline counts what its callers see, and by which layer
//! calls were refused. Without it a pipeline counts no calls. Retries, hedged attempts, time-outs
//! and refusals of rate limits are counted from the time at which the console is built. A budget
//! must have the clock of the console: it is read at that clock's time.
//!
//! ```
//! use std::time::Duration;
//! use steadfast::{
//!     Pipeline,
//!     console::{Calls, Console, ConsoleConfig},
//!     time::Clock,
//!     timeout::Timeout,
//! };
//!
//! let search = Pipeline::new()
//!     .then(Calls::new(&Clock::tokio()))
//!     .then(Timeout::new(Duration::from_secs(1)));
//! let console = Console::builder(ConsoleConfig::default())
//!     .watch("search", &search)
//!     .open()
//!     .build();
//! # assert!(console.is_ok());
//! ```
//!
//! Events of the console are an audit log: subscribe to them, or let `tracing` write them. In a
//! fleet, each process has its own page: breakers, limits, listeners and caches are of that
//! process, while queues and sagas are the same on all.
//!
//! # Guarantees
//!
//! 1. Without `authorize` or `open` no console is built. A request without rights is answered with
//!    403, and one whose check panics, too.
//! 2. A user who may read cannot act.
//! 3. An action is accepted only as a form from a page that this console made for the same user in
//!    the last hour, and that a browser sent from the same origin.
//! 4. No text from outside is ever markup: names, errors, headers and bodies are escaped. A browser
//!    runs no script but the console's own, and shows the page in no frame.
//! 5. Of two operators of this console who act on the same state, the second gets a conflict, and
//!    nothing happens. A form that is sent twice acts once.
//! 6. However many viewers there are, a component is read once in `refresh` for them, and never
//!    while nobody looks. So is each part that somebody looks at, of which 16 at a time.
//! 7. A read-out that hangs, fails or panics is one red box; the rest of the page is shown.
//! 8. Each action is an event with the operator, the component and the note when it begins, and
//!    with the result when it ends. So is each refused one of a user who has rights.
//!
//! # Cancel safety
//!
//! A response that is dropped ends no action: an action is a task of its own, and its result is
//! kept for the form. A runtime that ends drops it, as its operation's own page says.
//!
//! # Events
//!
//! [`ConsoleEvent`]: the beginning and the end of an operator's action, and one that was refused.
//!
//! # Pitfalls
//!
//! - Behind a proxy that changes the header `Host`, every action over plain HTTP is refused: a
//!   browser says where a form comes from only by `Origin`, which then differs. Keep the host, or
//!   serve HTTPS. The same is true of a proxy that sets `Referrer-Policy: no-referrer`: such forms
//!   have `Origin: null`.
//! - A proxy must not buffer `text/event-stream`.
//! - Behind a load balancer, forms and results are of one process: the next one refuses a form as
//!   stale, and knows no result. Make sessions sticky, or give each process a route of its own. A
//!   form is stale after an hour, too, and its note is lost.
//! - `open` refuses each name that is not in `hosts`: a page of another site could otherwise lead
//!   its own name to the console's address, and act with the browser of someone inside.
//! - A read-out that blocks its thread is not ended by `read_timeout`. One that is ended by it may
//!   keep a connection of the engine's pool until the engine answers.
//! - An event that no subscriber reads in time is lost, as with all components. For an audit, let
//!   `tracing` write them.
//!
//! # What it does not know
//!
//! - A page without trouble says that no component reports any. Rates of failures and of faults, a
//!   half-open breaker, and a listener that is slow are shown, and are no trouble.
//! - Why a partition halted, and that it did, only the process knows that owns it.
//! - An election is shown as this process last saw it. One that does not campaign knows no leader,
//!   and while the lease's store is away the last view stays.
//! - The time of a trouble that a component does not know itself counts only while somebody looks.
//! - The messages and letters that are listed, and found by their ids, are the first 20. Of more
//!   than 1,000 open sagas, stuck ones behind those are not seen.
//! - Actions of another process, or by code, are no conflict if they leave the same state behind: a
//!   leader that is asked to resign twice is asked twice.
//! - No action sets the checkpoint of a stream back: its owner alone writes it, and would overwrite
//!   another one. A saga has no deadline, and its owner has no name.
//! - Two layers of one kind in a pipeline share the number of calls that they refused, which their
//!   rows leave out. Layers that a change of a stack switches on later are not counted.
//!
//! # Source
//!
//! Server-sent events: the HTML standard, section 9.2. The header `Origin` of forms: the Fetch
//! standard, "append a request `Origin` header". Forged forms: OWASP, "Cross-Site Request
//! Forgery Prevention", signed tokens and fetch metadata. Keyed hashes: RFC 2104.
mod access;
mod board; // read-outs that all viewers share, and actions that happen once
mod body;
mod calls; // a policy that counts and times calls
mod config;
mod document; // settings as text
mod event;
mod markup; // escapes everything but literals
mod page;
mod panel;
mod panels; // one file for each kind of component
mod readout;
mod recent; // counts of the last minutes
mod service;
mod settings; // of a component in use: shown, compared, replaced
mod token;

pub use access::Access;
pub use body::ConsoleBody;
pub use calls::Calls;
pub use config::ConsoleConfig;
pub use event::{ConsoleEvent, ConsoleRefusal};
pub use panel::{Panel, View};
pub use service::{Console, ConsoleSpec};
