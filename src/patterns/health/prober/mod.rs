//! A prober: what services look like from outside. Compiled with the feature `prober`.
mod ask;
mod config;
mod event;
mod target;

use std::{collections::HashSet, future::Future, sync::Arc};

use futures_util::future::{join, join_all};
use reqwest::{Client, ClientBuilder, dns::Resolve};
use serde::Serialize;
use thiserror::Error;
use tokio::sync::Semaphore;

pub use config::ProberConfig;
pub use event::ProberEvent;
pub use target::{ProbeFailure, ProbeReport, Target};

use self::{
    ask::{Asker, NewClient, SystemNames},
    event::ProberEvent as Event,
    target::Checked,
};
use super::HealthStatus;
use crate::{
    build::{Builder, Common, Component, HasEvents, HasName},
    call::{Explanation, Layer},
    config::{ConfigError, Name, require},
    observe::{Events, Subscription},
    outcome::PolicyKind,
    port::within,
    race::{First, race},
    sync::Mutex,
    time::Clock,
};

/// Maximum number of probes of rounds at a time, and of those of [`Prober::ask`] beside them.
const AT_ONCE: usize = 32;

/// Outcome of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RoundOutcome {
    /// The known targets were judged as they are. The worst status of the others.
    Conclusive(HealthStatus),
    /// The known good target was found unhealthy, or the known bad one did not fail by status or
    /// text: the round says nothing about the others.
    Inconclusive,
}

/// One probe of each target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Round {
    /// Outcome.
    pub outcome: RoundOutcome,
    /// Probe of the known good target: the last one, or the one before the others, if that
    /// suffices for an inconclusive round.
    pub known_good: ProbeReport,
    /// Probe of the known bad target, at the same time as that of the known good one.
    pub known_bad: ProbeReport,
    /// Probes of the targets, in their order.
    pub targets: Vec<ProbeReport>,
}

/// Error of [`Prober::ask`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ProbeError {
    /// The target is unhealthy.
    #[error("the target is unhealthy: {0}")]
    Failed(ProbeFailure),
    /// The known good target was found unhealthy, or the known bad one did not fail by status or
    /// text.
    #[error("the probe is inconclusive: a known target was misjudged")]
    Inconclusive,
    /// The prober has no target of this name.
    #[error("the prober has no target of this name")]
    UnknownTarget,
}

/// Asks services from outside, as their users do: name, connection, certificate, status and text.
/// A clone is the same.
///
/// It needs a tokio runtime. Run it elsewhere than the services: in another zone, or at another
/// provider.
///
/// ```no_run
/// use steadfast::{
///     circuit_breaker::{CircuitBreaker, CircuitBreakerConfig},
///     health::{Prober, ProberConfig, RoundOutcome, Target},
/// };
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), steadfast::ConfigError> {
/// let prober = Prober::builder(ProberConfig::default())
///     .target(Target::new("ada", "https://ada.shop.example/readyz").text("healthy"))
///     .target(Target::new("bob", "https://bob.shop.example/readyz").text("healthy"))
///     // Both are known to the prober. It must find the one well, and the other one not.
///     .known_good(Target::new("good", "https://status.example/good").text("all is well"))
///     .known_bad(Target::new("bad", "https://ada.shop.example/no-such-page").text("healthy"))
///     .build()?;
///
/// let round = prober.round().await;
/// match round.outcome {
///     RoundOutcome::Conclusive(worst) => println!("{}", worst.as_str()),
///     _ => println!("the prober itself has a problem"),
/// }
/// for probe in round.targets {
///     println!("{}: {:?} in {:?}", probe.target, probe.code, probe.latency);
///     println!("  the certificate ends in {:?} days", probe.days_left);
/// }
///
/// // The probe of a breaker: an open one stays open until the prober finds the target well.
/// let breaker = CircuitBreaker::new(CircuitBreakerConfig::default())?;
/// breaker.run(|| prober.ask("ada"), std::future::pending()).await;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Prober(Arc<Inner>);

struct Inner {
    name: Option<Name>,
    config: ProberConfig,
    known_good: Checked,
    known_bad: Checked,
    targets: Vec<Checked>,
    asker: Asker,
    /// Turns of rounds.
    rounds: Semaphore,
    /// Turns of [`Prober::ask`], which does not wait for a round.
    asks: Semaphore,
    last: Mutex<Option<Arc<Round>>>,
    /// Statuses of the last conclusive round, in the order of the targets.
    statuses: Mutex<Vec<Option<HealthStatus>>>,
    clock: Clock,
    events: Events<Event>,
}

/// A report, with the text of its error for the event.
type Probed = (ProbeReport, Option<String>);

/// The known good target, and the known bad one.
type Known = (Probed, Probed);

impl Prober {
    /// Creates a builder. It needs a target, a known good and a known bad one.
    ///
    /// Methods of [this builder alone](crate::Builder#impl-Builder%3CProber%3E): `target`,
    /// `known_good`, `known_bad`, `client`, `names`.
    pub fn builder(config: ProberConfig) -> Builder<Self> {
        let (targets, client, names) = (Vec::new(), Box::new(Client::builder), Arc::new(SystemNames::default()));
        Builder::new(ProberSpec { config, targets, known_good: None, known_bad: None, client, names })
    }

    /// Asks all targets once, 32 at a time, and the known ones before and after them.
    ///
    /// # Cancel safety
    /// If the future is dropped, its connections are closed. [`last_round`](Self::last_round) is
    /// the round before.
    pub async fn round(&self) -> Round {
        let (known, targets) = self.probe_all(&self.0.targets, &self.0.rounds).await;
        let outcome = match is_judged(&known) {
            true => RoundOutcome::Conclusive(self.conclude(&targets)),
            false => {
                self.0.tell_inconclusive(&known);
                RoundOutcome::Inconclusive
            }
        };
        let ((known_good, _), (known_bad, _)) = known;
        let targets = targets.into_iter().map(|(report, _)| report).collect();
        let round = Round { outcome, known_good, known_bad, targets };
        *self.0.last.lock() = Some(Arc::new(round.clone()));
        round
    }

    /// Sends the events of a conclusive round, and returns the worst status.
    fn conclude(&self, targets: &[Probed]) -> HealthStatus {
        let mut changed = Vec::new();
        for ((report, _), last) in targets.iter().zip(self.0.statuses.lock().iter_mut()) {
            if last.replace(report.status) != Some(report.status) {
                changed.push(Event::Changed { target: report.target.clone(), status: report.status });
            }
        }
        for probed in targets {
            self.0.tell_failure(probed);
        }
        for event in changed {
            self.0.tell(event);
        }
        targets.iter().map(|(report, _)| report.status).max().unwrap_or(HealthStatus::Healthy)
    }

    /// Asks one target, and the known ones before and after it: the probe of a
    /// [`CircuitBreaker::run`](crate::circuit_breaker::CircuitBreaker::run). It does not wait for a
    /// round.
    ///
    /// # Errors
    /// If the target is unhealthy or unknown, or if the probe is inconclusive.
    ///
    /// # Cancel safety
    /// If the future is dropped, its connections are closed, and nothing is recorded.
    pub async fn ask(&self, target: &str) -> Result<(), ProbeError> {
        let found = self.0.targets.iter().find(|other| other.name.as_str() == target);
        let (known, asked) = self.probe_all([found.ok_or(ProbeError::UnknownTarget)?], &self.0.asks).await;
        if !is_judged(&known) {
            self.0.tell_inconclusive(&known);
            return Err(ProbeError::Inconclusive);
        }
        asked.iter().for_each(|probed| self.0.tell_failure(probed));
        asked.iter().find_map(|(report, _)| report.failure).map_or(Ok(()), |failure| Err(ProbeError::Failed(failure)))
    }

    /// Makes a round every `interval`, until `shutdown` is ready. A round that takes longer is
    /// followed by the next one at once.
    ///
    /// # Cancel safety
    /// If the future is dropped, the round under way is as one that is dropped.
    pub async fn run(&self, shutdown: impl Future<Output = ()>) {
        let rounds = async {
            loop {
                let next = self.0.clock.now() + self.0.config.interval;
                self.round().await;
                self.0.clock.sleep_until(next).await;
            }
        };
        match race(shutdown, rounds).await {
            First::One(()) => {}
            First::Other(never) => never,
        }
    }

    /// Probes targets, and the known ones before and after them.
    async fn probe_all<'a>(
        &self,
        targets: impl IntoIterator<Item = &'a Checked>,
        turns: &Semaphore,
    ) -> (Known, Vec<Probed>) {
        let Inner { known_good, known_bad, .. } = &*self.0;
        let known = || join(self.probe(known_good, turns), self.probe(known_bad, turns));
        let targets = join_all(targets.into_iter().map(|target| self.probe(target, turns)));
        // The known ones are polled first, so they have the first turns.
        let (before, targets) = join(known(), targets).await;
        // The prober's own network may have failed since: each target looks unhealthy then.
        let known = if is_judged(&before) { known().await } else { before };
        (known, targets)
    }

    /// Probes a target, when it is its turn.
    async fn probe(&self, target: &Checked, turns: &Semaphore) -> Probed {
        let Inner { asker, config, clock, .. } = &*self.0;
        let _turn = turns.acquire().await;
        let (mut report, began) = (ProbeReport::new(target), clock.now());
        let asked = within(clock, config.timeout, asker.ask(target, &mut report, config, clock)).await;
        let late = || Err((ProbeFailure::TimedOut, format!("no answer within {:?}", config.timeout)));
        let asked = asked.unwrap_or_else(late);
        report.latency = (clock.now() - began).saturating_sub(report.look_up);
        let Err((failure, error)) = asked else { return (report, None) };
        (report.failure, report.status) = (Some(failure), HealthStatus::Unhealthy);
        (report, Some(error))
    }

    /// Returns the last round, or `None` before the first one has ended.
    pub fn last_round(&self) -> Option<Arc<Round>> {
        self.0.last.lock().clone()
    }

    /// Describes the prober and its settings, with warnings.
    pub fn explain(&self) -> Explanation {
        let Inner { config, targets, known_good, .. } = &*self.0;
        let names: Vec<_> = targets.iter().map(|target| target.name.as_str()).collect();
        let settings = format!(
            "{}; each {:?}, within {:?}; a certificate warns {} days before its end, and fails {} days before it",
            names.join(", "),
            config.interval,
            config.timeout,
            config.certificate_warning.as_secs() / config::DAY.as_secs(),
            config.certificate_failure.as_secs() / config::DAY.as_secs(),
        );
        let mut layer = Layer::new(PolicyKind::Custom("prober"), self.0.name.clone(), settings);
        for target in targets.iter().chain([known_good]).filter(|target| target.text.is_none()) {
            let name = &target.name;
            layer = layer.with_warning(format!("target `{name}` expects no text: a missing page may answer 200"));
        }
        // The known ones take turns with the targets, and one more after them.
        let turns = u32::try_from((targets.len() + 2).div_ceil(AT_ONCE) + 1).unwrap_or(u32::MAX);
        let longest = config.timeout.saturating_mul(turns);
        if longest > config.interval {
            layer = layer.with_warning(format!("a round may take {longest:?}, which is longer than `interval`"));
        }
        let mut explanation = Explanation::default();
        explanation.push(layer);
        explanation
    }

    /// Returns the name, if it has one.
    pub fn name(&self) -> Option<&str> {
        self.0.name.as_ref().map(Name::as_str)
    }

    /// Returns the configuration.
    pub fn config(&self) -> ProberConfig {
        self.0.config
    }

    /// Subscribes to the events.
    pub fn events(&self) -> Subscription<Event> {
        self.0.events.subscribe()
    }
}

/// Returns `true` if the known targets were found as they are.
fn is_judged((good, bad): &Known) -> bool {
    good.0.failure.is_none() && is_bad(&bad.0)
}

/// Returns `true` if the known bad target was found so. Without an answer it shows nothing.
fn is_bad(known: &ProbeReport) -> bool {
    matches!(known.failure, Some(ProbeFailure::Status | ProbeFailure::MissingText))
}

impl Inner {
    fn tell(&self, event: Event) {
        self.events.send(self.name.as_ref(), self.clock.now(), || event);
    }

    /// Tells which of the known targets were misjudged.
    fn tell_inconclusive(&self, (good, bad): &Known) {
        self.tell_failure(good);
        if !is_bad(&bad.0) {
            self.tell_failure(bad);
        }
        self.tell(Event::Inconclusive { known_good: good.0.status, known_bad: bad.0.status });
    }

    fn tell_failure(&self, (report, error): &Probed) {
        if let (Some(failure), Some(error)) = (report.failure, error) {
            let (target, error, latency) = (report.target.clone(), error.clone(), report.latency);
            self.tell(Event::ProbeFailed { target, failure, error, latency });
        }
    }
}

/// Arguments of a prober, beside name and clock.
pub struct ProberSpec {
    config: ProberConfig,
    targets: Vec<Target>,
    known_good: Option<Target>,
    known_bad: Option<Target>,
    client: NewClient,
    names: Arc<dyn Resolve>,
}

impl Builder<Prober> {
    /// Adds a target.
    pub fn target(mut self, target: Target) -> Self {
        self.spec.targets.push(target);
        self
    }

    /// Sets the target that is known to be good: a page that you serve for this alone, say.
    pub fn known_good(mut self, target: Target) -> Self {
        self.spec.known_good = Some(target);
        self
    }

    /// Sets the target that is known to be bad: a missing page of a target, with its text, say. It
    /// must fail by its status or its text: one that does not answer shows nothing.
    pub fn known_bad(mut self, target: Target) -> Self {
        self.spec.known_bad = Some(target);
        self
    }

    /// Sets the HTTP client, for certificates of your own authority, say. It is built anew for each
    /// probe by `https`, since a client resumes its TLS sessions without seeing a certificate. If
    /// it cannot be built, the probe has no answer. A client that trusts the system's authorities
    /// reads them each time.
    ///
    /// The prober sets redirects and the look-up of names, and keeps no connection. It clears the
    /// proxies, yours and those of the environment: a proxy would look the name up in place of the
    /// prober.
    ///
    /// ```no_run
    /// use reqwest::{Certificate, Client};
    /// use steadfast::health::{Prober, ProberConfig};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let authority = Certificate::from_pem(&std::fs::read("authority.pem")?)?;
    /// let prober = Prober::builder(ProberConfig::default())
    ///     .client(move || Client::builder().tls_certs_only([authority.clone()]));
    /// # drop(prober);
    /// # Ok(())
    /// # }
    /// ```
    pub fn client(mut self, client: impl Fn() -> ClientBuilder + Send + Sync + 'static) -> Self {
        self.spec.client = Box::new(client);
        self
    }

    /// Sets the look-up of names: by a server outside of your network, say. The system's by
    /// default.
    pub fn names(mut self, names: impl Resolve + 'static) -> Self {
        self.spec.names = Arc::new(names);
        self
    }
}

impl Component for Prober {
    type Built = Result<Self, ConfigError>;
    type Spec = ProberSpec;

    fn assemble(spec: ProberSpec, common: Common) -> Self::Built {
        let ProberSpec { config, targets, known_good, known_bad, client, names } = spec;
        config.check()?;
        require(!targets.is_empty(), "target", "must be given")?;
        let known = |target: Option<Target>, field| match target {
            Some(target) => Checked::new(target),
            None => Err(ConfigError::new(field, "must be given, so that each round shows that the prober can judge")),
        };
        let (known_good, known_bad) = (known(known_good, "known_good")?, known(known_bad, "known_bad")?);
        let targets = targets.into_iter().map(Checked::new).collect::<Result<Vec<_>, _>>()?;
        let mut all = HashSet::new();
        for Checked { name, .. } in targets.iter().chain([&known_good, &known_bad]) {
            if !all.insert(name.as_str()) {
                return Err(ConfigError::new("target", format!("must not have the name `{name}` twice")));
            }
        }
        let asker = Asker::new(client, names);
        let asker = asker.map_err(|error| ConfigError::new("client", format!("cannot be built: {error}")))?;
        let Common { name, clock, hooks, .. } = common;
        Ok(Self(Arc::new(Inner {
            name,
            config,
            known_good,
            known_bad,
            statuses: Mutex::new(vec![None; targets.len()]),
            targets,
            asker,
            rounds: Semaphore::new(AT_ONCE),
            asks: Semaphore::new(AT_ONCE),
            last: Mutex::default(),
            clock,
            events: hooks.events(),
        })))
    }
}

impl HasName for Prober {}
impl HasEvents<Event> for Prober {}

crate::build::debug_fields!(Prober, |this|
    name: this.0.name, targets: this.0.targets.iter().map(|target| target.name.as_str()).collect::<Vec<_>>()
);
