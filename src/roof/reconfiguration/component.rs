//! Building a reconfigurer, and submitting changes to it.
use std::{
    cell::Cell,
    collections::HashSet,
    fmt,
    future::Future,
    marker::PhantomData,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    sync::Arc,
    task::{Context, Waker},
    time::Duration,
};

use thiserror::Error;

use super::{
    InEffect, ReconfigurerConfig, ReconfigurerEvent as Event,
    transaction::{self, Failed, Part, Refusal},
};
use crate::{
    build::{Builder, Common, Component, HasEvents, HasName},
    config::{ConfigError, Effect, Name, Reconfigure, require},
    health::Health,
    observe::{Events, Subscription},
    port::BoxFuture,
    supervisor::{ChildHandle, RestartError},
    sync::Mutex,
    time::Clock,
};

/// Interval at which health is read while a change bakes.
const TICK: Duration = Duration::from_millis(500);

thread_local! {
    /// `true` while a part is called on this thread. A part that submits a change would wait for
    /// itself.
    static IN_A_PART: Cell<bool> = const { Cell::new(false) };
}

/// Error of a change that was submitted. Unless it says otherwise, all parts are as before.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// A part refuses its section.
    #[error("part `{part}` refuses the change")]
    Vetoed {
        /// Name of the part.
        part: String,
        /// Field and rule.
        #[source]
        error: ConfigError,
    },
    /// A part cannot take its section while it is in use, and has no child that could be restarted.
    #[error("part `{part}` takes the change only when it starts")]
    NeedsRestart {
        /// Name of the part.
        part: String,
        /// The setting that cannot change.
        #[source]
        error: ConfigError,
    },
    /// Something outside of all parts differs: it would take effect by accident, at the next start.
    #[error("the change goes beyond the parts: {}", .parts.join(", "))]
    Undeclared {
        /// Names of all parts.
        parts: Vec<String>,
    },
    /// A part failed while its section was applied. The others have their old settings again.
    #[error("part `{part}` failed")]
    Failed {
        /// Name of the part.
        part: String,
        /// The failure.
        #[source]
        error: ConfigError,
    },
    /// The child of a part did not start again with the new settings.
    #[error("the child of part `{part}` did not start again")]
    NotRestarted {
        /// Name of the part.
        part: String,
        /// The failure.
        #[source]
        error: RestartError,
    },
    /// A part failed, and others could not be given back their old settings. They have the new
    /// ones.
    #[error("part `{part}` failed, and the change is still in effect in: {}", .left.join(", "))]
    PartiallyApplied {
        /// Name of the part that failed.
        part: String,
        /// Names of the parts that have the new settings.
        left: Vec<String>,
    },
    /// The process became unhealthy within the time of `bake`.
    #[error("the process became unhealthy")]
    Unhealthy,
    /// A newer change was submitted while this one waited.
    #[error("a newer change was submitted")]
    Superseded,
    /// The change was submitted by a part that was applying another one.
    #[error("a change must not be submitted by a part that is being changed")]
    FromWithin,
}

/// Result of a change that is in effect.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Applied {
    /// Names of the parts whose sections changed, in their order.
    pub parts: Vec<String>,
    /// Names of those that were restarted.
    pub restarted: Vec<String>,
}

/// Changes the settings `S` of a running process, all parts or none. A clone is the same. The
/// [module's page](super) states the guarantees.
pub struct Reconfigurer<S>(Arc<Inner<S>>);

struct Inner<S> {
    name: Option<Name>,
    config: ReconfigurerConfig,
    parts: Vec<Member<S>>,
    in_effect: InEffect<S>,
    health: Option<Health>,
    clock: Clock,
    events: Events<Event>,
    /// Number of the newest change that was submitted.
    newest: Mutex<u64>,
    /// Held while a change is in progress.
    turn: tokio::sync::Mutex<()>,
}

/// The restart of a child.
type Restart = dyn Fn() -> BoxFuture<'static, Result<(), RestartError>> + Send + Sync;

/// A part, and the restart of its child if it has one.
struct Member<S> {
    part: Box<dyn Part<S>>,
    restart: Option<Box<Restart>>,
}

impl<S: Clone + PartialEq + Send + Sync + 'static> Reconfigurer<S> {
    /// Creates a builder, with the settings in effect: `S`, or an [`InEffect`] that children read.
    ///
    /// Methods of [this builder alone](crate::Builder#impl-Builder%3CReconfigurer%3CS%3E%3E):
    /// `part`, `restart`, `health`.
    pub fn builder(settings: impl Into<InEffect<S>>, config: ReconfigurerConfig) -> Builder<Self> {
        Builder::new(ReconfigurerSpec { config, in_effect: settings.into(), parts: Vec::new(), health: None })
    }

    /// Puts these settings into effect, in all parts or in none. One change is in progress at a
    /// time; of those that wait the newest goes on.
    ///
    /// # Errors
    /// [`SubmitError`]. All parts are as before, unless it is
    /// [`PartiallyApplied`](SubmitError::PartiallyApplied).
    ///
    /// # Cancel safety
    /// A dropped change is undone, unless it was complete. A child that was being restarted is
    /// restarted once more.
    pub async fn submit(&self, next: S) -> Result<Applied, SubmitError> {
        if IN_A_PART.get() {
            return Err(SubmitError::FromWithin);
        }
        let mine = {
            let mut newest = self.0.newest.lock();
            *newest += 1;
            *newest
        };
        let _turn = self.0.turn.lock().await;
        if *self.0.newest.lock() != mine {
            return Err(SubmitError::Superseded);
        }
        let (now, next) = (self.0.in_effect.get(), Arc::new(next));
        let changed = self.0.plan(&now, &next)?;
        let mut change = Change { of: &self.0, now, next, changed, asked: Vec::new(), is_done: false };
        change.apply()?;
        change.restart().await?;
        change.bake().await?;
        Ok(change.complete())
    }

    /// Returns the settings in effect.
    pub fn settings(&self) -> Arc<S> {
        self.0.in_effect.get()
    }

    /// Returns the name, if it has one.
    pub fn name(&self) -> Option<&str> {
        self.0.name.as_ref().map(Name::as_str)
    }

    /// Returns the names of the parts, in their order.
    pub fn parts(&self) -> impl Iterator<Item = &str> {
        self.0.parts.iter().map(|member| member.part.name())
    }

    /// Returns `false` after a change that failed and could not be undone.
    pub fn is_whole(&self) -> bool {
        self.0.in_effect.is_whole()
    }

    /// Subscribes to the events.
    pub fn events(&self) -> Subscription<Event> {
        self.0.events.subscribe()
    }
}

impl<S: Clone + PartialEq> Inner<S> {
    fn plan(&self, now: &S, next: &S) -> Result<Vec<usize>, SubmitError> {
        let refusal = match transaction::plan(&self.parts(), &self.in_effect.suspects(), now, next) {
            Ok(changed) => return Ok(changed),
            Err(refusal) => refusal,
        };
        let (part, field, error) = match refusal {
            Refusal::Vetoed(part, error) => {
                let (part, field) = (self.part(part), error.field().to_owned());
                (Some(part.clone()), Some(field), SubmitError::Vetoed { part, error })
            }
            Refusal::NeedsRestart(part, error) => {
                let (part, field) = (self.part(part), error.field().to_owned());
                (Some(part.clone()), Some(field), SubmitError::NeedsRestart { part, error })
            }
            Refusal::Undeclared => {
                let parts = self.parts.iter().map(|member| member.part.name().to_owned()).collect();
                (None, None, SubmitError::Undeclared { parts })
            }
        };
        self.tell(Event::Refused { part, field });
        Err(error)
    }
}

impl<S> Inner<S> {
    fn parts(&self) -> Vec<&dyn Part<S>> {
        self.parts.iter().map(|member| &*member.part).collect()
    }

    fn part(&self, at: usize) -> String {
        self.parts.get(at).map(|member| member.part.name().to_owned()).unwrap_or_default()
    }

    fn names(&self, parts: impl IntoIterator<Item = usize>) -> Vec<String> {
        parts.into_iter().map(|at| self.part(at)).collect()
    }

    fn tell(&self, event: Event) {
        self.events.send(self.name.as_ref(), self.clock.now(), || event);
    }
}

/// A change in progress. It is undone when it is dropped before its end.
struct Change<'a, S: Clone> {
    of: &'a Inner<S>,
    now: Arc<S>,
    next: Arc<S>,
    changed: Vec<usize>,
    /// Parts whose children were asked to restart.
    asked: Vec<usize>,
    is_done: bool,
}

impl<S: Clone> Change<'_, S> {
    fn apply(&mut self) -> Result<(), SubmitError> {
        let applied = transaction::apply(&self.of.parts(), &self.changed, &self.now, &self.next);
        let Err(Failed { part, error, left }) = applied else {
            self.of.in_effect.set(self.next.clone());
            return Ok(());
        };
        // All before it are undone already.
        self.is_done = true;
        let name = self.of.part(part);
        Err(self
            .left(left.into_iter().map(|(at, _)| at), Some(&name))
            .unwrap_or(SubmitError::Failed { part: name, error }))
    }

    /// Restarts the children of the parts that have some.
    async fn restart(&mut self) -> Result<(), SubmitError> {
        for at in self.changed.clone() {
            let Some(restart) = self.of.parts.get(at).and_then(|member| member.restart.as_ref()) else { continue };
            self.asked.push(at);
            if let Err(error) = restart().await {
                let part = self.of.part(at);
                return Err(self.undo(Some(&part)).unwrap_or(SubmitError::NotRestarted { part, error }));
            }
        }
        Ok(())
    }

    async fn bake(&mut self) -> Result<(), SubmitError> {
        let (Some(bake), Some(health)) = (self.of.config.bake, &self.of.health) else { return Ok(()) };
        let until = self.of.clock.now() + bake;
        while self.of.clock.now() < until {
            self.of.clock.sleep_until(until.min(self.of.clock.now() + TICK)).await;
            if !health.is_fit() {
                return Err(self.undo(None).unwrap_or(SubmitError::Unhealthy));
            }
        }
        Ok(())
    }

    fn complete(mut self) -> Applied {
        self.is_done = true;
        self.of.in_effect.set_whole(self.next.clone());
        let (parts, restarted) = (self.of.names(self.changed.clone()), self.of.names(self.asked.clone()));
        self.of.tell(Event::Applied { parts: parts.clone(), restarted: restarted.clone() });
        Applied { parts, restarted }
    }

    /// Gives all parts their old settings back. Returns an error if that fails.
    fn undo(&mut self, part: Option<&str>) -> Option<SubmitError> {
        self.is_done = true;
        self.of.in_effect.set(self.now.clone());
        let left = transaction::undo(&self.of.parts(), &self.changed, &self.now);
        for at in self.asked.iter().rev() {
            if let Some(restart) = self.of.parts.get(*at).and_then(|member| member.restart.as_ref()) {
                // The supervisor has the order with the first poll, and carries it out.
                let _ = pin!(restart()).poll(&mut Context::from_waker(Waker::noop()));
            }
        }
        self.left(left.into_iter().map(|(at, _)| at), part)
    }

    /// Says how an undone change has ended. Returns an error if some parts are left with it.
    fn left(&self, left: impl Iterator<Item = usize>, part: Option<&str>) -> Option<SubmitError> {
        let left: Vec<usize> = left.collect();
        if left.is_empty() {
            self.of.tell(Event::RolledBack { part: part.map(str::to_owned) });
            return None;
        }
        let parts = self.of.names(left.iter().copied());
        self.of.in_effect.suspect(left);
        self.of.tell(Event::PartiallyApplied { parts: parts.clone() });
        Some(SubmitError::PartiallyApplied { part: part.unwrap_or_default().to_owned(), left: parts })
    }
}

impl<S: Clone> Drop for Change<'_, S> {
    fn drop(&mut self) {
        if !self.is_done {
            let _ = self.undo(None);
        }
    }
}

/// Arguments of a reconfigurer, beside name and clock.
pub struct ReconfigurerSpec<S> {
    config: ReconfigurerConfig,
    in_effect: InEffect<S>,
    parts: Vec<Member<S>>,
    health: Option<Health>,
}

/// A component with its section of the settings.
struct Section<C, R, F> {
    name: String,
    section: F,
    component: R,
    of: PhantomData<fn(C) -> C>,
}

impl<S, C, R, F> Part<S> for Section<C, R, F>
where
    C: Clone + PartialEq,
    R: Reconfigure<C> + Send + Sync,
    F: Fn(&mut S) -> &mut C + Send + Sync,
{
    fn name(&self) -> &str {
        &self.name
    }

    fn differs(&self, one: &mut S, other: &mut S) -> bool {
        (self.section)(one) != (self.section)(other)
    }

    fn copy(&self, from: &mut S, into: &mut S) {
        (self.section)(into).clone_from((self.section)(from));
    }

    fn validate(&self, settings: &mut S) -> Result<Effect, ConfigError> {
        guarded(&self.name, || self.component.validate((self.section)(settings)))
    }

    fn apply(&self, settings: &mut S) -> Result<(), ConfigError> {
        guarded(&self.name, || self.component.apply((self.section)(settings).clone()))
    }
}

/// Calls a part. A panic is an error, and a change that the part submits is refused.
fn guarded<T>(part: &str, call: impl FnOnce() -> Result<T, ConfigError>) -> Result<T, ConfigError> {
    struct Left(bool);
    impl Drop for Left {
        fn drop(&mut self) {
            IN_A_PART.set(self.0);
        }
    }
    let _left = Left(IN_A_PART.replace(true));
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| Err(ConfigError::new(part.to_owned(), "panicked")))
}

/// A section that a child reads when it starts: there is nothing to validate, and nothing to apply.
struct AtStart<C, F> {
    name: String,
    section: F,
    of: PhantomData<fn(C) -> C>,
}

impl<S, C, F> Part<S> for AtStart<C, F>
where
    C: Clone + PartialEq,
    F: Fn(&mut S) -> &mut C + Send + Sync,
{
    fn name(&self) -> &str {
        &self.name
    }

    fn differs(&self, one: &mut S, other: &mut S) -> bool {
        (self.section)(one) != (self.section)(other)
    }

    fn copy(&self, from: &mut S, into: &mut S) {
        (self.section)(into).clone_from((self.section)(from));
    }

    fn validate(&self, _: &mut S) -> Result<Effect, ConfigError> {
        Ok(Effect::InPlace)
    }

    fn apply(&self, _: &mut S) -> Result<(), ConfigError> {
        Ok(())
    }
}

impl<S: Clone + PartialEq + Send + Sync + 'static> Builder<Reconfigurer<S>> {
    /// Adds a part: a component, and its section of the settings. Parts are applied in this order.
    pub fn part<C, R>(
        mut self,
        name: impl Into<String>,
        section: impl Fn(&mut S) -> &mut C + Send + Sync + 'static,
        component: R,
    ) -> Self
    where
        C: Clone + PartialEq + 'static,
        R: Reconfigure<C> + Send + Sync + 'static,
    {
        let part = Box::new(Section { name: name.into(), section, component, of: PhantomData });
        self.spec.parts.push(Member { part, restart: None });
        self
    }

    /// Adds a part that takes its section only when it starts: the child of a supervisor, which
    /// reads it from [`InEffect`]. Children restart after all other parts have taken the change.
    pub fn restart<C: Clone + PartialEq + 'static>(
        mut self,
        name: impl Into<String>,
        section: impl Fn(&mut S) -> &mut C + Send + Sync + 'static,
        child: ChildHandle,
    ) -> Self {
        let part = Box::new(AtStart { name: name.into(), section, of: PhantomData });
        let child = Arc::new(child);
        let restart = move || -> BoxFuture<'static, Result<(), RestartError>> {
            let child = child.clone();
            Box::pin(async move { child.restart().await })
        };
        self.spec.parts.push(Member { part, restart: Some(Box::new(restart)) });
        self
    }

    /// Sets the health that is watched for the time of `bake` after a change. Its watch must
    /// [run](Health::run).
    pub fn health(mut self, health: &Health) -> Self {
        self.spec.health = Some(health.clone());
        self
    }
}

impl<S: Clone + PartialEq + Send + Sync + 'static> Component for Reconfigurer<S> {
    type Built = Result<Self, ConfigError>;
    type Spec = ReconfigurerSpec<S>;

    fn assemble(spec: ReconfigurerSpec<S>, common: Common) -> Self::Built {
        let ReconfigurerSpec { config, in_effect, mut parts, health } = spec;
        config.check()?;
        require(config.bake.is_none() || health.is_some(), "bake", "needs `health`")?;
        require(!parts.is_empty(), "part", "must be there at least once")?;
        let mut names = HashSet::new();
        for Member { part, .. } in &parts {
            require(!part.name().is_empty(), "part", "must have a name")?;
            if !names.insert(part.name().to_owned()) {
                return Err(ConfigError::new("part", format!("must not have the name `{}` twice", part.name())));
            }
        }
        // A child restarts when all else has changed.
        parts.sort_by_key(|member| member.restart.is_some());
        let Common { name, clock, hooks, .. } = common;
        let (newest, turn, events) = (Mutex::new(0), tokio::sync::Mutex::default(), hooks.events());
        Ok(Self(Arc::new(Inner { name, config, parts, in_effect, health, clock, events, newest, turn })))
    }
}

impl<S: Clone + PartialEq + Send + Sync + 'static> HasName for Reconfigurer<S> {}
impl<S: Clone + PartialEq + Send + Sync + 'static> HasEvents<Event> for Reconfigurer<S> {}

impl<S> Clone for Reconfigurer<S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<S> fmt::Debug for Reconfigurer<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<_> = self.0.parts.iter().map(|member| member.part.name()).collect();
        f.debug_struct("Reconfigurer").field("name", &self.0.name).field("parts", &parts).finish_non_exhaustive()
    }
}
