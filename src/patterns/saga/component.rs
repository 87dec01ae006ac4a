//! A saga as its users hold it.
use std::{fmt, sync::Arc};

use bytes::Bytes;

use super::{
    Plan, SagaConfig, SagaError, SagaEvent, SagaOutcome, SagaStatus,
    core::{LOOKS, SagaCore, Takes},
    execution::{Driven, Leave},
    plan::{AfterPivot, TypedCode, check_name},
    records::Stored,
    state::{Phase, Progress},
};
use crate::{
    build::{Builder, Common, Component, HasEntropy, HasEvents},
    codec::Codec,
    config::{ConfigError, Live, Name, Reconfigure, reconfigurable},
    observe::Subscription,
    port::{Capability, PortError},
    store::{Store, Write},
    sync::{AtomicU64, Mutex},
};

/// Runs sagas of one plan. The [module's page](super) has the details.
///
/// Clones share their state. Any number of processes may run sagas of one name in one store.
pub struct Saga<T> {
    pub(super) core: Arc<SagaCore>,
    pub(super) codec: Codec<T>,
}

/// Arguments of a saga, beside clock and entropy.
pub struct SagaSpec<T> {
    name: Name,
    store: Arc<dyn Store>,
    codec: Codec<T>,
    plan: Plan<T, AfterPivot>,
    config: SagaConfig,
}

impl<T: Send + Sync + 'static> Component for Saga<T> {
    type Built = Result<Self, ConfigError>;
    type Spec = SagaSpec<T>;

    fn assemble(spec: SagaSpec<T>, common: Common) -> Self::Built {
        let SagaSpec { name, store, codec, plan, config } = spec;
        let (entropy, Common { clock, hooks, .. }) = (common.entropy(), common);
        config.check()?;
        check_name("name", "the name of a saga", name.as_str())?;
        plan.check()?;
        let can = store.capabilities();
        for needed in [Capability::AtomicBatch, Capability::Linearizable, Capability::TimeToLive] {
            can.require(needed).map_err(|lacks| lacks.refuse("store"))?;
        }
        let code = Arc::new(TypedCode { steps: plan.code, codec: codec.clone() });
        let core = SagaCore {
            partition: format!("saga/{name}"),
            name,
            store,
            config: Live::new(config),
            plan: plan.steps,
            code,
            clock,
            executor: entropy.next_u64(),
            entropy,
            events: hooks.events(),
            runs: AtomicU64::new(1),
            local: Mutex::default(),
        };
        Ok(Self { core: Arc::new(core), codec })
    }
}

reconfigurable!([T: Send + Sync + 'static] Saga<T>, SagaConfig, |_this, next| next.check());

impl<T: Send + Sync + 'static> HasEntropy for Saga<T> {}
impl<T: Send + Sync + 'static> HasEvents<SagaEvent> for Saga<T> {}

impl<T: Send + Sync + 'static> Saga<T> {
    /// Creates a saga of this plan. Its records lie in the partition `saga/NAME` of the store.
    ///
    /// # Errors
    /// If a setting, the name or the plan breaks a rule, or if the store lacks
    /// [`AtomicBatch`](Capability::AtomicBatch), [`Linearizable`](Capability::Linearizable) or
    /// [`TimeToLive`](Capability::TimeToLive).
    pub fn new<P>(
        name: impl Into<Name>,
        store: Arc<dyn Store>,
        codec: Codec<T>,
        plan: Plan<T, P>,
        config: SagaConfig,
    ) -> Result<Self, ConfigError> {
        Self::builder(name, store, codec, plan, config).build()
    }

    /// Creates a builder with the arguments of [`new`](Self::new). Its entropy tells executors
    /// apart: seeds of a test must differ.
    pub fn builder<P>(
        name: impl Into<Name>,
        store: Arc<dyn Store>,
        codec: Codec<T>,
        plan: Plan<T, P>,
        config: SagaConfig,
    ) -> Builder<Self> {
        Builder::new(SagaSpec { name: name.into(), store, codec, plan: plan.forget_phase(), config })
    }

    /// Starts the saga of this id and runs it to its end, or waits for the end of the one that was
    /// started before.
    ///
    /// An id is one saga for as long as its record is kept
    /// ([`retention`](SagaConfig::retention)): a repeated `run` returns the recorded result and
    /// runs no action. If another executor runs the saga, this one waits; it takes the saga over
    /// when its record did not change for [`takeover_after`](SagaConfig::takeover_after).
    ///
    /// # Errors
    /// [`Store`](SagaError::Store) if the store fails for too long, and
    /// [`Incompatible`](SagaError::Incompatible): the saga stays open.
    /// [`InputMismatch`](SagaError::InputMismatch) if the id belongs to a saga with another initial
    /// state. [`Invalid`](SagaError::Invalid) for an id that is empty or too long, and a state that
    /// cannot be stored.
    ///
    /// # Cancel safety
    /// A dropped future is a crash at that point: the saga stays open. Run it again, or leave it to
    /// [`recover`](Self::recover). The attempt that was under way has an unknown outcome.
    pub async fn run(&self, id: &str, state: T) -> Result<SagaOutcome<T>, SagaError> {
        self.run_with_rows(id, state, Vec::new()).await
    }

    /// Runs a saga as [`run`](Self::run), and writes rows together with its start: all or none. The
    /// rows lie in the partition of the saga, and their names must begin with `u/`.
    ///
    /// # Errors
    /// Same as [`run`](Self::run), and [`RowRefused`](SagaError::RowRefused) if the store refuses a
    /// row, for example by its precondition: then the saga was not started.
    ///
    /// # Cancel safety
    /// Same as [`run`](Self::run).
    pub async fn run_with_rows(&self, id: &str, state: T, rows: Vec<Write>) -> Result<SagaOutcome<T>, SagaError> {
        let bytes = self.codec.encode(&state).map_err(|error| PortError::invalid("state", error));
        drop(state);
        let bytes = bytes.map_err(SagaError::Invalid)?;
        let end = self.core.run(id, bytes.into(), &rows).await?;
        self.outcome(id, &end)
    }

    /// Takes over the saga of this id at once, and runs it to its end. The caller must know that
    /// its executor is gone; if it is not, it stops at its next write.
    ///
    /// # Errors
    /// Same as [`run`](Self::run), [`NotFound`](SagaError::NotFound), and
    /// [`Superseded`](SagaError::Superseded) if another executor takes the saga over.
    ///
    /// # Cancel safety
    /// Same as [`run`](Self::run).
    pub async fn resume(&self, id: &str) -> Result<SagaOutcome<T>, SagaError> {
        self.core.check_id(id)?;
        let stored = self.core.read_known(id).await?;
        let end = match self.core.enter(id) {
            _ if !stored.progress.is_open() => stored.progress,
            // It runs in this process.
            None => self.core.attach(id, None, Takes::Stalled).await?,
            Some(local) => {
                let execution = self.core.claim(stored, local).await?.ok_or(SagaError::Superseded)?;
                match execution.drive(&Leave::default()).await? {
                    Driven::Ended(end) => end,
                    Driven::Released(_) => self.core.attach(id, None, Takes::Released).await?,
                }
            }
        };
        self.outcome(id, &end)
    }

    /// Cancels a saga: it is compensated from the next step boundary on. A completed saga is
    /// compensated, too, while its record is kept, and so is one that a supervisor gave up before
    /// its pivot. Waits for the end of the saga.
    ///
    /// # Errors
    /// [`PastPivot`](SagaError::PastPivot) if the pivot took effect, may have, or is under way;
    /// [`NotFound`](SagaError::NotFound); otherwise the same as [`run`](Self::run).
    ///
    /// # Cancel safety
    /// If the future is dropped, the cancellation was recorded or not; the compensation is left to
    /// [`recover`](Self::recover).
    pub async fn cancel(&self, id: &str, reason: &str) -> Result<SagaOutcome<T>, SagaError> {
        self.core.check_id(id)?;
        loop {
            let stored = self.core.read_known(id).await?;
            let mut next = stored.progress.clone();
            if !next.cancel(reason) {
                return Err(SagaError::PastPivot);
            }
            if !next.is_open() {
                return self.outcome(id, &next);
            }
            if next == stored.progress {
                break; // it is being compensated
            }
            if next.owner.is_some() {
                if self.core.signal(id, &stored, &next).await? {
                    self.core.signal_local(id);
                    break;
                }
            } else {
                let cancel = |progress: &mut Progress| match progress.cancel(reason) {
                    true => Ok(()),
                    false => Err(SagaError::PastPivot),
                };
                if let Some(end) = self.take(id, stored, cancel).await? {
                    return self.outcome(id, &end);
                }
            }
        }
        let end = self.core.attach(id, None, Takes::Released).await?;
        self.outcome(id, &end)
    }

    /// Tries the step at which a saga is stuck again, with all its attempts, and runs the saga to
    /// its end.
    ///
    /// # Errors
    /// [`NotStuck`](SagaError::NotStuck), [`NotFound`](SagaError::NotFound), otherwise the same as
    /// [`run`](Self::run).
    ///
    /// # Cancel safety
    /// Same as [`run`](Self::run).
    pub async fn retry(&self, id: &str) -> Result<SagaOutcome<T>, SagaError> {
        self.unstick(id, |progress| progress.retry()).await
    }

    /// Records that an operator did manually what a stuck step was to do, with a note, and runs the
    /// saga to its end.
    ///
    /// # Errors
    /// Same as [`retry`](Self::retry); [`NotStuck`](SagaError::NotStuck) also if the saga is stuck
    /// at another step.
    ///
    /// # Cancel safety
    /// Same as [`run`](Self::run).
    pub async fn skip(&self, id: &str, step: &str, note: &str) -> Result<SagaOutcome<T>, SagaError> {
        self.unstick(id, |progress| progress.skip(step, note)).await
    }

    /// Records that the step at which a saga is stuck took no effect, or that an operator undid it,
    /// with a note. The other steps are compensated. For a pivot whose outcome was unknown, and
    /// whose service says afterwards that nothing happened.
    ///
    /// # Errors
    /// [`NotStuck`](SagaError::NotStuck) if the saga is not stuck at the action of this step, or if
    /// the step lies past a pivot that took effect; otherwise the same as [`run`](Self::run).
    ///
    /// # Cancel safety
    /// Same as [`run`](Self::run).
    pub async fn undo(&self, id: &str, step: &str, note: &str) -> Result<SagaOutcome<T>, SagaError> {
        self.unstick(id, |progress| progress.undo(step, note)).await
    }

    /// Ends the delay of a saga that waits for its next attempt. If none waits now, the next delay
    /// is skipped.
    ///
    /// An execution in another process that waits by itself, as in [`run`](Self::run), is told only
    /// when its delay ends.
    ///
    /// # Errors
    /// [`NotFound`](SagaError::NotFound), [`Store`](SagaError::Store),
    /// [`Incompatible`](SagaError::Incompatible).
    ///
    /// # Cancel safety
    /// If the future is dropped, the saga was woken or not.
    pub async fn wake(&self, id: &str) -> Result<(), SagaError> {
        self.core.wake(id).await.map(drop)
    }

    /// Returns the status of a saga; `None` if there is none with this id.
    ///
    /// # Errors
    /// [`Store`](SagaError::Store), [`Incompatible`](SagaError::Incompatible).
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn read(&self, id: &str) -> Result<Option<SagaStatus<T>>, SagaError> {
        self.core.check_id(id)?;
        match self.core.read_known(id).await {
            Ok(Stored { progress, .. }) => {
                let state = self.state_of(id, &progress)?;
                Ok(Some(SagaStatus::new(&progress, state)))
            }
            Err(SagaError::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the current settings.
    pub fn config(&self) -> SagaConfig {
        self.core.config.now()
    }

    /// Replaces the settings while the saga is in use, for all clones. An attempt that has begun
    /// keeps its time limit; all other settings hold from their next use on, also for sagas that
    /// run now. The settings of single steps belong to the plan and stay. Change
    /// [`takeover_after`](SagaConfig::takeover_after) and
    /// [`step_timeout`](SagaConfig::step_timeout) in all processes, the longer `takeover_after`
    /// first: until then an executor with longer steps may be taken over, and stops at its next
    /// write.
    ///
    /// # Errors
    /// If a setting breaks its rule. Nothing has changed then.
    pub fn reconfigure(&self, config: SagaConfig) -> Result<(), ConfigError> {
        self.validate(&config)?;
        self.core.config.replace(config);
        Ok(())
    }

    /// Returns the number of sagas that run in this component now.
    pub fn running(&self) -> usize {
        self.core.local.lock().len()
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        self.core.name.as_str()
    }

    /// Subscribes to the events that follow.
    pub fn events(&self) -> Subscription<SagaEvent> {
        self.core.events.subscribe()
    }

    async fn unstick(&self, id: &str, change: impl Fn(&mut Progress) -> bool) -> Result<SagaOutcome<T>, SagaError> {
        self.core.check_id(id)?;
        loop {
            let stored = self.core.read_known(id).await?;
            if !stored.progress.is_stuck() {
                return Err(SagaError::NotStuck);
            }
            let change = |progress: &mut Progress| if change(progress) { Ok(()) } else { Err(SagaError::NotStuck) };
            if let Some(end) = self.take(id, stored, change).await? {
                return self.outcome(id, &end);
            }
        }
    }

    /// Changes a record without an owner, takes it over in the same write, and runs the saga.
    async fn take(
        &self,
        id: &str,
        stored: Stored,
        change: impl FnOnce(&mut Progress) -> Result<(), SagaError>,
    ) -> Result<Option<Progress>, SagaError> {
        let Some(local) = self.core.enter(id) else {
            // Another task of this process is about to change the record.
            self.core.clock.sleep(LOOKS.0).await;
            return Ok(None);
        };
        let Some(execution) = self.core.take(stored, local, 0, change).await? else { return Ok(None) };
        match execution.drive(&Leave::default()).await {
            Ok(Driven::Ended(end)) => Ok(Some(end)),
            Ok(Driven::Released(_)) | Err(SagaError::Superseded) => {
                self.core.attach(id, None, Takes::Released).await.map(Some)
            }
            Err(error) => Err(error),
        }
    }

    fn state_of(&self, id: &str, progress: &Progress) -> Result<T, SagaError> {
        let bytes: &Bytes = &progress.state;
        self.codec.decode(bytes).map_err(|error| self.core.incompatible(id, &format!("the state of the saga: {error}")))
    }

    fn outcome(&self, id: &str, end: &Progress) -> Result<SagaOutcome<T>, SagaError> {
        if let Some(step) = end.stuck_step() {
            return Ok(SagaOutcome::Stuck { step: step.planned.name.to_string(), reason: step.note.clone() });
        }
        if end.phase == Phase::Completed {
            return Ok(SagaOutcome::Completed(self.state_of(id, end)?));
        }
        let step = end.failed_step.and_then(|i| end.steps.get(usize::from(i)));
        let step = step.map(|step| step.planned.name.to_string());
        Ok(SagaOutcome::Compensated { step, reason: end.reason.clone() })
    }
}

impl<T> Clone for Saga<T> {
    fn clone(&self) -> Self {
        Self { core: self.core.clone(), codec: self.codec.clone() }
    }
}

impl<T> fmt::Debug for Saga<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.core.fmt(f)
    }
}
