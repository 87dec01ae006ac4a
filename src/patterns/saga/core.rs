//! The parts of a saga that do not depend on the type of its state: starting, attaching and taking
//! over.
use std::{
    collections::{HashMap, hash_map::Entry},
    fmt,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use tokio::sync::Notify;

use super::{
    SagaConfig, SagaError, SagaEvent as Event,
    execution::{Driven, Leave},
    plan::Code,
    records::{Execution, Started, Stored, Written},
    state::{Limits, Owner, PlannedStep, Progress},
};
use crate::{
    config::{Live, Name},
    entropy::Entropy,
    hash::stable_hash,
    observe::Events,
    port::{FencingToken, PortError},
    store::{Store, Version, Write},
    sync::{AtomicU64, Mutex, Ordering},
    time::{Clock, Instant},
};

/// Delays between two looks at a saga that another executor runs: doubled from the first to the
/// last.
pub(super) const LOOKS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

pub(crate) struct SagaCore {
    pub(super) name: Name,
    pub(super) partition: String,
    pub(super) store: Arc<dyn Store>,
    pub(super) config: Live<SagaConfig>,
    pub(super) plan: Vec<PlannedStep>,
    pub(super) code: Arc<dyn Code>,
    pub(super) clock: Clock,
    pub(super) entropy: Entropy,
    pub(super) events: Events<Event>,
    /// Number of this component, by which it recognises its own sagas.
    pub(super) executor: u64,
    /// Number of its executions. Only unique, so `Relaxed`.
    pub(super) runs: AtomicU64,
    pub(super) local: Mutex<HashMap<Arc<str>, Arc<Signals>>>,
}

/// Signals between the tasks of this process that work on one saga.
#[derive(Default)]
pub(super) struct Signals {
    /// To the execution: a caller has changed the record.
    pub(super) changed: Notify,
    /// From the execution: it is over.
    over: Notify,
}

/// The right to run a saga in this process, where it runs once at a time. Released on drop.
pub(super) struct LocalRun {
    core: Arc<SagaCore>,
    pub(super) id: Arc<str>,
    pub(super) signals: Arc<Signals>,
    pub(super) owner: Owner,
}

impl Drop for LocalRun {
    fn drop(&mut self) {
        self.core.local.lock().remove(&self.id);
        self.signals.over.notify_waiters();
    }
}

/// A record without changes: its version, and the time at which it was first seen.
pub(crate) type Seen = Option<(Version, Instant)>;

/// The sagas that an attaching caller takes over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Takes {
    /// Those without a living executor, when their delay is over.
    Stalled,
    /// Those that were released, at once, and stalled ones.
    Released,
    /// Those that seem to have no executor, also if they were released.
    Silent,
}

impl SagaCore {
    pub(super) fn event(&self, event: impl FnOnce() -> Event) {
        self.events.send(Some(&self.name), self.clock.now(), event);
    }

    pub(super) fn limits(&self) -> Limits {
        let SagaConfig { max_attempts, max_compensation_attempts, .. } = self.config.now();
        Limits { attempts: max_attempts, undo_attempts: max_compensation_attempts, holds: false }
    }

    pub(crate) fn check_id(&self, id: &str) -> Result<(), SagaError> {
        let can = self.store.capabilities();
        let most = can.max_key().saturating_sub(2);
        let rule = match id.len() {
            0 => "must not be empty".to_owned(),
            bytes if bytes > most => format!("must be at most {most} bytes, is {bytes}"),
            _ => return Ok(()),
        };
        Err(SagaError::Invalid(PortError::invalid("id", rule)))
    }

    /// Enters the saga, unless it runs in this process already.
    pub(super) fn enter(self: &Arc<Self>, id: &str) -> Option<LocalRun> {
        let id: Arc<str> = id.into();
        match self.local.lock().entry(id.clone()) {
            Entry::Occupied(_) => None,
            Entry::Vacant(place) => {
                let signals = place.insert(Arc::default()).clone();
                let owner = Owner { executor: self.executor, run: self.runs.fetch_add(1, Ordering::Relaxed) };
                Some(LocalRun { core: self.clone(), id, signals, owner })
            }
        }
    }

    pub(super) fn is_local(&self, id: &str) -> bool {
        self.local.lock().contains_key(id)
    }

    /// Tells an execution of this process that the record has changed.
    pub(super) fn signal_local(&self, id: &str) {
        if let Some(signals) = self.local.lock().get(id) {
            signals.changed.notify_one();
        }
    }

    /// Starts a saga or attaches to it, and returns its end.
    pub(super) async fn run(self: &Arc<Self>, id: &str, state: Bytes, rows: &[Write]) -> Result<Progress, SagaError> {
        self.check_id(id)?;
        let input = stable_hash(&state);
        loop {
            let mut found = None;
            if let Some(local) = self.enter(id) {
                let progress = Progress::start(&self.plan, input, local.owner, state.clone(), self.limits());
                match self.start(progress, rows, local).await? {
                    Started::Exists(stored) => found = stored,
                    Started::Now(execution) => {
                        self.event(|| Event::Started { id: id.to_owned() });
                        match execution.drive(&Leave::default()).await {
                            Ok(Driven::Ended(end)) => return Ok(end),
                            // The saga goes on elsewhere.
                            Ok(Driven::Released(_)) | Err(SagaError::Superseded) => {}
                            Err(error) => return Err(error),
                        }
                    }
                }
            }
            match self.attach_from(found, id, Some(input), Takes::Stalled).await {
                Err(SagaError::NotFound) => {}
                ended => return ended,
            }
        }
    }

    /// Waits for the end of a saga, and takes it over if it stalls.
    pub(super) async fn attach(
        self: &Arc<Self>,
        id: &str,
        input: Option<u64>,
        takes: Takes,
    ) -> Result<Progress, SagaError> {
        self.attach_from(None, id, input, takes).await
    }

    /// Attaches to a saga, of which the caller may have read the record.
    async fn attach_from(
        self: &Arc<Self>,
        mut found: Option<Stored>,
        id: &str,
        input: Option<u64>,
        takes: Takes,
    ) -> Result<Progress, SagaError> {
        let (mut seen, mut look) = (None, LOOKS.0);
        loop {
            // Created before the look, so that an end in between is noticed.
            let local = self.local.lock().get(id).cloned();
            let over = local.as_ref().map(|signals| signals.over.notified());
            let stored = match found.take() {
                Some(stored) => stored,
                None => self.read_known(id).await?,
            };
            if input.is_some_and(|input| input != stored.progress.input) {
                return Err(SagaError::InputMismatch);
            }
            if !stored.progress.is_open() {
                return Ok(stored.progress);
            }
            if self.may_take(&stored, &mut seen, takes)
                && let Some(local) = self.enter(id)
            {
                if let Some(execution) = self.claim(stored, local).await? {
                    match execution.drive(&Leave::default()).await {
                        Ok(Driven::Ended(end)) => return Ok(end),
                        Ok(Driven::Released(_)) | Err(SagaError::Superseded) => {}
                        Err(error) => return Err(error),
                    }
                }
                continue;
            }
            match over {
                Some(over) => over.await,
                None => {
                    self.clock.sleep(look).await;
                    look = (look * 2).min(LOOKS.1);
                }
            }
        }
    }

    /// Returns `true` if a record has no living executor, as far as this process can tell.
    ///
    /// An execution of this component that is not registered is over. That of another component
    /// is taken to be over if its record did not change for `takeover_after`, beyond its delay. The
    /// time is this process's own; no clocks are compared.
    pub(super) fn may_take(&self, stored: &Stored, seen: &mut Seen, takes: Takes) -> bool {
        let now = self.clock.now();
        let since = match seen {
            Some((version, since)) if *version == stored.version => *since,
            _ => seen.insert((stored.version, now)).1,
        };
        let progress = &stored.progress;
        let silent = self.config.load().takeover_after.saturating_add(progress.longest_wait());
        let wait = match progress.owner {
            _ if takes == Takes::Silent => silent,
            None if takes == Takes::Released => return true,
            None => progress.shortest_wait(),
            Some(owner) if owner.executor == self.executor => Duration::ZERO,
            Some(_) => silent,
        };
        now >= since + wait
    }

    /// Asks the execution of a saga to cancel it. Nothing is changed if it has ended, or has passed
    /// its pivot.
    pub(crate) async fn request_cancel(&self, id: &str, reason: &str) -> Result<(), SagaError> {
        loop {
            let stored = self.read_known(id).await?;
            let mut next = stored.progress.clone();
            let is_over = !stored.progress.is_open() || !next.cancel(reason) || next == stored.progress;
            if is_over || self.signal(id, &stored, &next).await? {
                self.signal_local(id);
                return Ok(());
            }
        }
    }

    /// Rejects a saga that this process cannot run.
    fn check_known(&self, id: &str, progress: &Progress) -> Result<(), SagaError> {
        let steps = progress.steps.iter().map(|step| &step.planned);
        let steps: Vec<_> = steps.map(|planned| (&*planned.name, planned.kind.compensates)).collect();
        match self.code.refuses(&steps, &progress.state) {
            Some(reason) => Err(self.incompatible(id, &reason)),
            None => Ok(()),
        }
    }

    /// Takes a saga over. Returns `None` if its record has changed.
    pub(super) async fn claim(
        self: &Arc<Self>,
        stored: Stored,
        local: LocalRun,
    ) -> Result<Option<Execution>, SagaError> {
        self.take(stored, local, 0, |_| Ok(())).await
    }

    /// Changes a record and takes the saga over on behalf of a request, in one write. Returns
    /// `None` if the record has changed meanwhile.
    pub(super) async fn take(
        self: &Arc<Self>,
        stored: Stored,
        local: LocalRun,
        request: u64,
        change: impl FnOnce(&mut Progress) -> Result<(), SagaError>,
    ) -> Result<Option<Execution>, SagaError> {
        self.check_known(&local.id, &stored.progress)?;
        let (owner, before) = (local.owner, stored.progress.phase);
        let mut next = stored.progress.clone();
        change(&mut next)?;
        next.claim(owner, request, self.limits());
        let mut execution = Execution::new(self.clone(), stored.progress, stored.version, local);
        match execution.write(next, &[]).await {
            Ok(Written::Applied) => {
                let (id, epoch) = (execution.id().to_string(), FencingToken::new(execution.progress.epoch));
                self.event(|| Event::TakenOver { id, epoch });
                execution.tell(before);
                Ok(Some(execution))
            }
            Ok(Written::Changed) | Err(SagaError::Superseded) => Ok(None),
            Ok(Written::Refused(reason)) => {
                Err(SagaError::Store(PortError::new(crate::port::PortErrorKind::Invalid, reason)))
            }
            Err(error) => Err(error),
        }
    }
}

impl fmt::Debug for SagaCore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Saga")
            .field("name", &self.name)
            .field("store", &self.store)
            .field("running", &self.local.lock().len())
            .finish_non_exhaustive()
    }
}
