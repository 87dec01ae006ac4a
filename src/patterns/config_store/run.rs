//! Taking revisions: at the start, and whenever the head has moved.
use std::{
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use tokio::sync::Notify;

use super::{
    ConfigStore, ConfigStoreError, ConfigStoreEvent as Event, Documents, MemberReport, RejectReason, Revision,
    RevisionInfo, Veto,
    component::{Seen, Source},
    documents::{self, Damage, field_of},
    local::Kept,
    members::topic,
    state::{Id, Known, Take},
};
use crate::{
    port::{Failure as _, PortError, PortErrorKind},
    race::{both, race},
    revisions::{Head, Looks},
    store::StoreError,
    sync::{Mutex, Ordering},
    time::Instant,
};

/// Interval at which a trial's health check is called, at most.
const LONGEST_TICK: Duration = Duration::from_secs(1);

/// Requests to look at the store at once, which the running watch answers.
#[derive(Default)]
pub(super) struct Asked {
    requests: Mutex<Requests>,
    kick: Notify,
    done: Notify,
}

#[derive(Default)]
struct Requests {
    asked: u64,
    answered: u64,
    /// Result of the last look.
    last: Option<Result<u64, ConfigStoreError>>,
    /// Number of runs.
    watches: u32,
}

/// The running watch, until it is dropped.
struct Watch<'a>(&'a Asked);

impl<'a> Watch<'a> {
    fn begin(asked: &'a Asked) -> Self {
        asked.requests.lock().watches += 1;
        Self(asked)
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        self.0.requests.lock().watches -= 1;
        self.0.done.notify_waiters();
    }
}

/// A revision that was read, and is not taken yet.
struct Read {
    info: RevisionInfo,
    layers: Documents,
    known: Known,
}

impl<T: Send + Sync + 'static> ConfigStore<T> {
    /// Looks at the store now, for an admin endpoint, and returns the number that is in effect
    /// then. Beside a [`run`](Self::run) the revision passes through its function; without one, or
    /// after its end, it is taken as it is.
    ///
    /// # Errors
    /// The store failed, or the revision is not taken: the one before stays in effect.
    ///
    /// # Cancel safety
    /// The revision is taken as a whole or not at all.
    pub async fn refresh(&self) -> Result<u64, ConfigStoreError> {
        let asked = &self.0.source.asked;
        let mine = {
            let mut requests = asked.requests.lock();
            requests.asked += 1;
            requests.asked
        };
        asked.kick.notify_one();
        loop {
            // Created before the check, so that an answer in between is received.
            let done = asked.done.notified();
            {
                let requests = asked.requests.lock();
                match &requests.last {
                    Some(last) if requests.answered >= mine => return last.clone(),
                    _ if requests.watches == 0 => break,
                    _ => {}
                }
            }
            done.await;
        }
        self.look(&mut |_| async { Ok::<_, Veto>(()) }).await
    }

    /// Takes each new revision until `shutdown` is ready: at its notice, or at the next poll.
    /// `accept` may veto it; then the one before stays. While it runs,
    /// [`current`](Self::current) is the one before. The number counts as good after its trial, for
    /// which this must run.
    ///
    /// After `shutdown` it writes to the local store and the list of members, for up to
    /// `call_timeout` each. Run it once. Of two runs each revision passes through the function of
    /// one.
    ///
    /// # Cancel safety
    /// A dropped run leaves the revision in effect. While a revision is on trial it counts as the
    /// death of the process: end it by `shutdown`.
    pub async fn run<F, R, E>(&self, shutdown: impl Future<Output = ()>, mut accept: impl FnMut(Arc<Revision<T>>) -> F)
    where
        F: Future<Output = Result<R, E>>,
        E: Into<Veto>,
    {
        let source = &self.0.source;
        {
            let _watch = Watch::begin(&source.asked);
            let reports = source.member.keep_reporting(|member| self.report(member));
            race(shutdown, both(self.follow(&mut accept), both(self.keep_trial(), reports))).await;
        }
        source.stop().await;
    }

    async fn follow<F, R, E>(&self, accept: &mut impl FnMut(Arc<Revision<T>>) -> F)
    where
        F: Future<Output = Result<R, E>>,
        E: Into<Veto>,
    {
        let source = &self.0.source;
        let topic = topic(&source.name);
        let mut looks = Looks::new(&source.clock, &source.entropy, (source.notifier.as_ref(), &topic));
        loop {
            race(looks.is_due(), source.asked.kick.notified()).await;
            let asked = source.asked.requests.lock().asked;
            let taken = self.look(accept).await;
            looks.looked(source.config.poll_interval);
            let mut requests = source.asked.requests.lock();
            requests.answered = asked;
            requests.last = Some(taken);
            drop(requests);
            source.asked.done.notify_waiters();
        }
    }

    /// Looks at the head, and takes another revision than the one in effect. One task looks at a
    /// time.
    async fn look<F, R, E>(&self, accept: &mut impl FnMut(Arc<Revision<T>>) -> F) -> Result<u64, ConfigStoreError>
    where
        F: Future<Output = Result<R, E>>,
        E: Into<Veto>,
    {
        let source = &self.0.source;
        let _turn = source.turn.lock().await;
        let head = source.head().await?;
        let id = source.id(&head);
        let (number, current) = (id.number, self.current());
        if source.settle(&current) {
            // What is not recorded is parsed on trial once more after a restart.
            let _ = source.save().await;
        }
        if id == current.known.id {
            source.looked(None);
            return Ok(number);
        }
        if let Some(rejected) = source.looked_at_rejected(id) {
            return Err(rejected);
        }
        let read = source.read(&head, id).await?;
        if read.known.digest == current.known.digest {
            source.rename(&read);
            // What is not recorded is parsed once more after a restart.
            let _ = source.save().await;
            let (value, documents) = (current.value.clone(), current.documents.clone());
            self.set(Arc::new(Revision { info: read.info, value, documents, known: read.known }), true);
            return Ok(number);
        }
        let before = source.kept.lock().clone();
        let revision = match source.parse(read).await {
            Ok(revision) => Arc::new(revision),
            Err(error) => {
                source.put_back(before, id, &error).await;
                return Err(error);
            }
        };
        if let Err(veto) = accept(revision.clone()).await {
            let field = field_of(&veto.into().0);
            let rejected = source.reject(id, RejectReason::Vetoed, field);
            source.put_back(before, id, &rejected).await;
            return Err(rejected);
        }
        if source.kept.lock().trials.vetoed.take().is_some() {
            // A veto that is still recorded is asked for again after a restart.
            let _ = source.save().await;
        }
        self.set(revision, false);
        Ok(number)
    }

    fn set(&self, revision: Arc<Revision<T>>, is_same: bool) {
        let source = &self.0.source;
        let (from, number) = (self.current().number(), revision.number());
        self.0.current.store(revision);
        source.tell(Event::Applied { from, number, is_same });
        source.member.changed();
    }

    /// Ends a trial after its time of health.
    async fn keep_trial(&self) {
        let source = &self.0.source;
        let Some(time) = source.config.trial_time(source.local.is_some()) else {
            return std::future::pending().await;
        };
        let tick = (time / 20).clamp(Duration::from_millis(1), LONGEST_TICK);
        // The revision on trial, and the time from which on it has been well.
        let mut well: Option<(Known, Instant)> = None;
        loop {
            let now = source.clock.now();
            let current = self.current();
            let is_well = source.kept.lock().trials.is_on_trial(current.known) && source.member.is_fit();
            let since = well.filter(|(same, _)| *same == current.known).map_or(now, |(_, since)| since);
            well = is_well.then_some((current.known, since));
            let mut pause = tick;
            if is_well && now - since >= time {
                let before = source.kept.lock().clone();
                source.kept.lock().trials.pass(current.known);
                source.settle(&current);
                match source.save().await {
                    Ok(()) => {
                        source.tell(Event::TrialPassed { number: current.number() });
                        source.member.changed();
                    }
                    // Tried again after a poll, unless another one is on trial by then.
                    Err(_) => {
                        pause = source.config.poll_interval;
                        let mut kept = source.kept.lock();
                        if kept.trials.trial.is_none() {
                            *kept = before;
                        }
                    }
                }
            }
            source.clock.sleep(pause).await;
        }
    }

    fn report(&self, member: String) -> MemberReport {
        let source = &self.0.source;
        let known = self.current().known;
        let (number, rejected) = (known.id.number, source.seen.lock().rejection().map(|(number, _)| number));
        let is_on_trial = source.kept.lock().trials.is_on_trial(known);
        MemberReport { member, number, rejected, is_on_trial, is_fit: source.member.is_fit(), life: source.member.life }
    }
}

impl<T> Source<T> {
    /// Takes the revision in effect when the process starts.
    pub(super) async fn start(&self) -> Result<Revision<T>, ConfigStoreError> {
        if let Some(local) = &self.local {
            *self.kept.lock() = local.read().await.map_err(|error| self.local_failed(error))?;
        }
        let error = match self.start_with_head().await {
            Ok(revision) => return Ok(revision),
            Err(error) => error,
        };
        let good = self.kept.lock().good.clone();
        let may_fall_back = self.config.takes_last_good(self.local.is_some());
        let known = self.kept.lock().trials.good;
        let (Some((info, layers)), Some(known), true) = (good, known, may_fall_back) else { return Err(error) };
        let number = info.number;
        let value = self.loaded(&layers).map_err(|(reason, field)| self.reject_again(number, reason, field))?;
        self.tell(Event::StartedFromLocal { number });
        Ok(Revision { info, value: Arc::new(value), documents: layers, known })
    }

    async fn start_with_head(&self) -> Result<Revision<T>, ConfigStoreError> {
        let head = self.head().await?;
        let id = self.id(&head);
        let before = self.kept.lock().clone();
        if before.trials.is_vetoed(id) && self.config.takes_last_good(self.local.is_some()) {
            // The run asks for it once more: the program may be another release.
            return Err(self.reject_again(id.number, RejectReason::Vetoed, None));
        }
        let read = self.read(&head, id).await?;
        let taken = self.parse(read).await;
        if let Err(error) = &taken {
            self.put_back(before, id, error).await;
        }
        taken
    }

    /// Returns the revision of the head that this process takes.
    fn id(&self, head: &Head) -> Id {
        let number = head.number_for(self.member.name());
        Id { number, owner: head.owner(number).unwrap_or_default() }
    }

    /// Remembers the time of a look that ended well, or with a revision that is not taken.
    fn looked(&self, rejected: Option<(Id, ConfigStoreError)>) {
        *self.seen.lock() = Seen { at: Some(self.clock.now()), rejected };
    }

    /// Returns the error of this revision, if it is known as one that is not taken.
    fn looked_at_rejected(&self, id: Id) -> Option<ConfigStoreError> {
        let mut seen = self.seen.lock();
        let rejected = seen.rejected.take().filter(|(rejected, _)| *rejected == id)?;
        *seen = Seen { at: Some(self.clock.now()), rejected: Some(rejected.clone()) };
        Some(rejected.1)
    }

    /// Reads the head.
    async fn head(&self) -> Result<Head, ConfigStoreError> {
        match self.revisions.head().await {
            Ok(Some((head, _))) if head.stable() > 0 => {
                self.for_all.store(head.stable(), Ordering::Relaxed);
                Ok(head)
            }
            Ok(_) => {
                self.tell(Event::RefreshFailed { kind: None });
                Err(ConfigStoreError::NothingPublished)
            }
            Err(error) => Err(self.failed(error)),
        }
    }

    /// Reads a revision, and the layers of this program in it.
    async fn read(&self, head: &Head, id: Id) -> Result<Read, ConfigStoreError> {
        let number = id.number;
        let bytes = match self.revisions.document(head, number).await {
            Ok(Some(bytes)) => bytes,
            // A later publisher has deleted it, or a backup lacks it: the next look shows.
            Ok(None) => {
                self.tell(Event::RefreshFailed { kind: None });
                let error = PortError::new(PortErrorKind::Corrupt, "the revision in effect is missing");
                return Err(ConfigStoreError::Store(error.into()));
            }
            Err(error) => return Err(self.failed(error)),
        };
        self.looked(None);
        let (info, all) = documents::decode(number, bytes).map_err(|damage| {
            let reason = match damage {
                Damage::Unreadable => RejectReason::Unreadable,
                Damage::WrongDigest => RejectReason::WrongDigest,
            };
            self.reject(id, reason, None)
        })?;
        let layers = all.only(&self.layers);
        if let Some(name) = layers.larger_than(self.config.max_document) {
            return Err(self.reject(id, RejectReason::TooLarge, Some(name.to_owned())));
        }
        let known = Known { id, digest: layers.digest() };
        Ok(Read { info, layers, known })
    }

    /// Records what is on trial, and then parses it.
    async fn parse(&self, read: Read) -> Result<Revision<T>, ConfigStoreError> {
        let id = read.known.id;
        if self.local.is_some() {
            let (take, trial) = {
                let mut kept = self.kept.lock();
                let take = kept.trials.take(read.known, self.config.max_trial_starts);
                if self.is_for_all(id.number) {
                    kept.trials.settle(read.known);
                }
                if kept.trials.good == Some(read.known) {
                    kept.good = Some((read.info.clone(), read.layers.clone()));
                }
                (take, kept.trials.trial)
            };
            match (self.save().await, take) {
                (Err(error), Take::OnTrial) => return Err(error),
                (_, Take::Not) => return Err(self.reject(id, RejectReason::Quarantined, None)),
                _ => {}
            }
            if let (Take::OnTrial, Some(trial)) = (take, trial) {
                self.tell(Event::TrialBegan { number: id.number, lives: trial.lives });
            }
        }
        let value = self.loaded(&read.layers).map_err(|(reason, field)| self.reject(id, reason, field))?;
        Ok(Revision { info: read.info, value: Arc::new(value), documents: read.layers, known: read.known })
    }

    /// Returns `true` if this revision was in effect for all processes at the last look.
    fn is_for_all(&self, number: u64) -> bool {
        self.for_all.load(Ordering::Relaxed) == number
    }

    /// Keeps a revision that has passed its trial as the last good one, if it is in effect for all
    /// processes. Returns `true` if that is new.
    fn settle(&self, current: &Revision<T>) -> bool {
        let mut kept = self.kept.lock();
        let is_new = self.is_for_all(current.number()) && kept.trials.settle(current.known);
        if is_new {
            kept.good = Some((current.info.clone(), current.documents.clone()));
        }
        is_new
    }

    /// Notes that another number has the same layers as the one that runs.
    fn rename(&self, read: &Read) {
        let mut kept = self.kept.lock();
        kept.trials.rename(read.known);
        if kept.trials.good == Some(read.known) {
            kept.good = Some((read.info.clone(), read.layers.clone()));
        }
    }

    /// Calls the loader.
    fn loaded(&self, layers: &Documents) -> Result<T, (RejectReason, Option<String>)> {
        match catch_unwind(AssertUnwindSafe(|| (self.load)(layers))) {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err((RejectReason::Refused, field_of(&error))),
            Err(_) => Err((RejectReason::Panicked, None)),
        }
    }

    /// Remembers that a revision is not taken, and says so once.
    fn reject(&self, id: Id, reason: RejectReason, field: Option<String>) -> ConfigStoreError {
        let error = self.reject_again(id.number, reason, field);
        self.looked(Some((id, error.clone())));
        self.member.changed();
        error
    }

    fn reject_again(&self, number: u64, reason: RejectReason, field: Option<String>) -> ConfigStoreError {
        self.tell(Event::Rejected { number, reason, field: field.clone() });
        ConfigStoreError::Rejected { number, reason, field }
    }

    fn failed(&self, error: StoreError) -> ConfigStoreError {
        self.tell(Event::RefreshFailed { kind: error.backend().map(PortError::kind) });
        ConfigStoreError::Store(error)
    }

    /// Restores what was kept before a revision that is not taken, unless it is quarantined. One
    /// that was only refused has ended no life. A veto is kept.
    async fn put_back(&self, mut before: Kept, id: Id, error: &ConfigStoreError) {
        match error {
            ConfigStoreError::Rejected { reason: RejectReason::Quarantined, .. } => return,
            ConfigStoreError::Rejected { reason: RejectReason::Vetoed, .. } => before.trials.vetoed = Some(id),
            // Nothing was recorded or parsed.
            ConfigStoreError::Local(_) => {
                *self.kept.lock() = before;
                return;
            }
            _ => {}
        }
        before.trials.refuse(id);
        *self.kept.lock() = before;
        let _ = self.save().await;
    }

    /// Records the kept state, if there is a local store.
    async fn save(&self) -> Result<(), ConfigStoreError> {
        let Some(local) = &self.local else { return Ok(()) };
        local.save(&self.kept).await.map_err(|error| self.local_failed(error))
    }

    fn local_failed(&self, error: StoreError) -> ConfigStoreError {
        self.tell(Event::LocalFailed { kind: error.backend().map(PortError::kind) });
        ConfigStoreError::Local(error)
    }

    /// Ends in order: it was no death.
    async fn stop(&self) {
        let changed = self.kept.lock().trials.stop();
        if changed {
            let _ = self.save().await;
        }
        self.member.leave().await;
    }
}
