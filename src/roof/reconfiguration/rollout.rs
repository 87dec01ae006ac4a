//! Changes that reach one stage of the processes after another, and go back by themselves.
use std::sync::Arc;

use thiserror::Error;

use super::{
    AbortReason, RolloutConfig, RolloutEvent as Event,
    stages::{Verdict, WHOLE, Watched, enter, is_last, is_new},
};
use crate::{
    build::{Builder, Common, Component, HasEvents},
    config::{ConfigError, require},
    config_store::{Change, ConfigPublisher, Found, PublishError, RolloutStepKind},
    observe::{Events, Subscription},
    revisions::Stage,
    time::Clock,
};

/// Maximum number of stages.
const MAX_STAGES: usize = 16;

/// A change with the shares of the processes that take it, stage after stage.
#[derive(Debug, Clone, PartialEq)]
pub struct StagedChange {
    change: Change,
    shares: Vec<f64>,
}

impl Change {
    /// Stages the change: each share of the processes takes it after the one before has stayed
    /// healthy. The last share is 1.
    ///
    /// ```
    /// use steadfast::config_store::Change;
    ///
    /// let change = Change::to("billing", "retries = 5").staged([0.05, 0.5, 1.0]);
    /// ```
    #[must_use]
    pub fn staged(self, shares: impl IntoIterator<Item = f64>) -> StagedChange {
        StagedChange { change: self, shares: shares.into_iter().collect() }
    }
}

impl StagedChange {
    fn shares(&self) -> Result<Vec<u64>, ConfigError> {
        let rule = "must grow from above 0 to 1, in 16 stages at most";
        let grow = self.shares.windows(2).all(|pair| matches!(pair, [one, next] if one < next));
        let ends = self.shares.first().is_some_and(|share| *share > 0.0) && self.shares.last() == Some(&1.0);
        require(grow && ends && self.shares.len() <= MAX_STAGES, "stages", rule)?;
        Ok(self.shares.iter().map(|share| (share * WHOLE as f64).ceil() as u64).collect())
    }
}

/// Error of a roll-out.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum RolloutError {
    /// The change was not published, or the store failed by hand's request. While a roll-out is
    /// under way, a failure of the store only makes it wait.
    #[error(transparent)]
    Publish(#[from] PublishError),
    /// The roll-out was aborted: all processes return to the number before.
    #[error("the roll-out of revision {number} was aborted: {member} {}", reason.as_str())]
    Aborted {
        /// Number of the change, which is not used again.
        number: u64,
        /// The member that was the reason; empty if it was aborted elsewhere, or if no member of
        /// the stage was seen.
        member: String,
        /// Reason.
        reason: AbortReason,
    },
    /// No process that reads the configuration is there.
    #[error("no process reads the configuration under a member's name")]
    NoMembers,
    /// No roll-out is under way.
    #[error("no roll-out is under way")]
    NotUnderWay,
}

/// Drives changes through their stages. A clone is the same. The [module's page](super) states the
/// guarantees.
#[derive(Clone)]
pub struct Rollout(Arc<Inner>);

struct Inner {
    publisher: ConfigPublisher,
    config: RolloutConfig,
    clock: Clock,
    events: Events<Event>,
}

impl Rollout {
    /// Creates a driver of the roll-outs of this publisher's configuration.
    ///
    /// # Errors
    /// A setting violates its rule, or the store has no times to live.
    pub fn new(publisher: &ConfigPublisher, config: RolloutConfig) -> Result<Self, ConfigError> {
        Self::builder(publisher, config).build()
    }

    /// Creates a builder.
    pub fn builder(publisher: &ConfigPublisher, config: RolloutConfig) -> Builder<Self> {
        Builder::new(RolloutSpec { publisher: publisher.clone(), config })
    }

    /// Publishes a change for its first stage, and drives it to its end. Returns its number.
    ///
    /// # Errors
    /// [`RolloutError`]. After [`Aborted`](RolloutError::Aborted) all processes return to the
    /// number before.
    ///
    /// # Cancel safety
    /// A dropped roll-out stays at its stage: [`resume`](Self::resume) it, or
    /// [`abort`](Self::abort) it.
    pub async fn run(&self, staged: StagedChange) -> Result<u64, RolloutError> {
        let shares = staged.shares().map_err(PublishError::Change)?;
        if self.0.publisher.members().await?.is_empty() {
            return Err(RolloutError::NoMembers);
        }
        let number = self.0.publisher.stage(staged.change, shares).await?;
        self.drive(number).await
    }

    /// Drives the roll-out that is under way, from its recorded stage to its end. Any number of
    /// drivers may do that.
    ///
    /// # Errors
    /// Same as [`run`](Self::run); [`RolloutError::NotUnderWay`] if there is none.
    ///
    /// # Cancel safety
    /// Same as [`run`](Self::run).
    pub async fn resume(&self) -> Result<u64, RolloutError> {
        let (head, _) = self.0.publisher.read_head().await?;
        let number = head.stage().ok_or(RolloutError::NotUnderWay)?.number;
        self.drive(number).await
    }

    /// Goes on to the next stage without waiting, or completes the roll-out after the last one.
    ///
    /// # Errors
    /// [`RolloutError::NotUnderWay`], [`RolloutError::NoMembers`], or an error of the store.
    ///
    /// # Cancel safety
    /// The step is taken or not.
    pub async fn advance(&self) -> Result<(), RolloutError> {
        loop {
            let found = self.0.publisher.read_head().await?;
            let stage = found.0.stage().ok_or(RolloutError::NotUnderWay)?.clone();
            let is_moved = if is_last(&stage) && !is_new(&stage) {
                self.end(&found, &stage, None).await?
            } else {
                let step = if is_new(&stage) { stage.step } else { stage.step + 1 };
                self.enter(&found, &stage, step).await?
            };
            if is_moved {
                return Ok(());
            }
        }
    }

    /// Aborts the roll-out: all processes return to the number before.
    ///
    /// # Errors
    /// [`RolloutError::NotUnderWay`], or an error of the store.
    ///
    /// # Cancel safety
    /// It is aborted or not.
    pub async fn abort(&self) -> Result<(), RolloutError> {
        loop {
            let found = self.0.publisher.read_head().await?;
            let stage = found.0.stage().ok_or(RolloutError::NotUnderWay)?.clone();
            if self.end(&found, &stage, Some((String::new(), AbortReason::ByHand))).await? {
                return Ok(());
            }
        }
    }

    /// Subscribes to the events.
    pub fn events(&self) -> Subscription<Event> {
        self.0.events.subscribe()
    }

    async fn drive(&self, number: u64) -> Result<u64, RolloutError> {
        let (mut watched, mut step) = (Watched::default(), None);
        loop {
            match self.turn(number, &mut watched, &mut step).await {
                Ok(Some(())) => return Ok(number),
                Ok(None) => {}
                // No stage is entered while nobody can be seen.
                Err(RolloutError::Publish(_) | RolloutError::NoMembers) => watched.is_blind(),
                Err(error) => return Err(error),
            }
            self.0.clock.sleep(self.0.config.look_interval).await;
        }
    }

    /// Looks once. Returns `Some` when the change is in effect for all.
    async fn turn(
        &self,
        number: u64,
        watched: &mut Watched,
        step: &mut Option<u64>,
    ) -> Result<Option<()>, RolloutError> {
        let found = self.0.publisher.read_head().await?;
        let stage = match found.0.stage() {
            Some(stage) if stage.number == number => stage.clone(),
            _ if found.0.stable() == number => return Ok(Some(())),
            _ => return Err(RolloutError::Aborted { number, member: String::new(), reason: AbortReason::ByHand }),
        };
        if *step != Some(stage.step) {
            *step = Some(stage.step);
            watched.begin();
        }
        if is_new(&stage) {
            self.enter(&found, &stage, stage.step).await?;
            return Ok(None);
        }
        let reports = self.0.publisher.members().await?;
        let timing = (self.0.clock.now(), self.0.config.bake);
        match watched.judge((&found.0, &stage), &reports, timing) {
            Verdict::Wait => Ok(None),
            Verdict::Abort(member, reason) => {
                if self.end(&found, &stage, Some((member.clone(), reason))).await? {
                    return Err(RolloutError::Aborted { number, member, reason });
                }
                Ok(None)
            }
            Verdict::Advance if is_last(&stage) => Ok(self.end(&found, &stage, None).await?.then_some(())),
            Verdict::Advance => self.enter(&found, &stage, stage.step + 1).await.map(|_| None),
        }
    }

    /// Enters a step. Returns `false` if another process has moved the head.
    async fn enter(&self, found: &Found, stage: &Stage, step: u64) -> Result<bool, RolloutError> {
        let reports = self.0.publisher.members().await?;
        let entered = enter(stage, step, &reports).ok_or(RolloutError::NoMembers)?;
        let share = usize::try_from(step).ok().and_then(|step| stage.shares.get(step)).copied().unwrap_or(WHOLE);
        let share = share as f64 / WHOLE as f64;
        let next = found.0.at_stage(entered);
        let is_moved = self.0.publisher.move_head(found, &next, RolloutStepKind::Stage(share)).await?;
        if is_moved {
            self.tell(Event::StageEntered { number: stage.number, share, members: reports.len() });
        }
        Ok(is_moved)
    }

    /// Ends the roll-out, well or not. Returns `false` if another process has moved the head.
    async fn end(
        &self,
        found: &Found,
        stage: &Stage,
        aborted: Option<(String, AbortReason)>,
    ) -> Result<bool, RolloutError> {
        let kind = if aborted.is_some() { RolloutStepKind::Aborted } else { RolloutStepKind::Completed };
        let next = found.0.end_stage(aborted.is_none());
        let is_moved = self.0.publisher.move_head(found, &next, kind).await?;
        if is_moved {
            let number = stage.number;
            self.tell(match aborted {
                None => Event::Completed { number },
                Some((member, reason)) => Event::Aborted { number, member, reason },
            });
        }
        Ok(is_moved)
    }

    fn tell(&self, event: Event) {
        self.0.events.send(Some(self.0.publisher.name()), self.0.clock.now(), || event);
    }
}

/// Arguments of a roll-out, beside the clock.
pub struct RolloutSpec {
    publisher: ConfigPublisher,
    config: RolloutConfig,
}

impl Component for Rollout {
    type Built = Result<Self, ConfigError>;
    type Spec = RolloutSpec;

    fn assemble(spec: RolloutSpec, common: Common) -> Self::Built {
        let RolloutSpec { publisher, config } = spec;
        config.check()?;
        require(publisher.can_list_members(), "publisher", "needs `time to live`, which its store lacks")?;
        let Common { clock, hooks, .. } = common;
        Ok(Self(Arc::new(Inner { publisher, config, clock, events: hooks.events() })))
    }
}

impl HasEvents<Event> for Rollout {}

crate::build::debug_fields!(Rollout, |this| publisher: this.0.publisher);
