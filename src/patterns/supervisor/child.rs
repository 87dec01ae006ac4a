//! The description of a child.
use std::{fmt, future::Future, sync::Arc};

use super::{ChildContext, StopReport, Supervisor, SupervisorError, state::ChildRules};
use crate::{
    config::{ConfigError, Name, require, require_share},
    port::BoxFuture,
};

/// The future of a child's instance, whose error is a text.
pub(super) type Work = BoxFuture<'static, Result<(), String>>;

/// Creates the future of an instance.
pub(super) type Factory = Arc<dyn Fn(ChildContext) -> Work + Send + Sync>;

/// Rule for the restarts of a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Restart {
    /// The child is restarted whenever it ends. An end without an error is a failure, too.
    #[default]
    Permanent,
    /// The child is restarted if it fails. It may end.
    Transient,
    /// The child is never restarted, and its failure stops no other child.
    Temporary,
}

/// A child of a [`Supervisor`]: a name, and a function that creates the future of each instance.
///
/// ```
/// use steadfast::supervisor::{Child, ChildContext, Restart};
///
/// async fn refresh(child: ChildContext) -> Result<(), std::io::Error> {
///     child.ready();
///     child.stopping().await;
///     Ok(())
/// }
/// let prices = Child::new("prices", refresh).waits_for_ready();
/// let import = Child::new("import", |_| async { Ok::<_, String>(()) });
/// let import = import.restart(Restart::Transient);
/// assert_eq!(import.name(), "import");
/// # drop(prices);
/// ```
#[derive(Clone)]
pub struct Child {
    rules: ChildRules,
    factory: Factory,
    max_poll_share: Option<f64>,
    is_metered: bool,
    nested: Option<Supervisor>,
}

impl Child {
    /// Creates a permanent child that is restarted alone or with its siblings, by the strategy.
    ///
    /// `start` is called for each instance, inside the task of the instance. A panic in it is a
    /// failure of the child, as one in its future or in the drop of that is.
    pub fn new<F, E>(name: impl Into<Name>, start: impl Fn(ChildContext) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: fmt::Display,
    {
        let factory: Factory = Arc::new(move |context| {
            let work = start(context);
            Box::pin(async move { work.await.map_err(|error| error.to_string()) })
        });
        Self::of(name.into(), factory)
    }

    fn of(name: Name, factory: Factory) -> Self {
        let rules = ChildRules { name, restart: Restart::default(), is_optional: false, waits_for_ready: false };
        Self { rules, factory, max_poll_share: None, is_metered: true, nested: None }
    }

    /// Creates a child that runs another supervisor. An escalation of that one is a failure of this
    /// child. With [`waits_for_ready`](Self::waits_for_ready) it is ready when all of its children
    /// have started.
    pub fn supervisor(name: impl Into<Name>, supervisor: Supervisor) -> Self {
        let nested = supervisor.clone();
        let factory: Factory = Arc::new(move |context| {
            let supervisor = supervisor.clone();
            Box::pin(async move {
                let run = supervisor.run_within(Some(&context), context.stopping());
                match run.await {
                    Ok(report) => {
                        context.set_nested(report);
                        Ok(())
                    }
                    Err(error) => {
                        if let SupervisorError::Escalated { unstopped, .. } = &error {
                            context.set_nested(StopReport { unstopped: unstopped.clone(), failed: Vec::new() });
                        }
                        Err(error.to_string())
                    }
                }
            })
        });
        Self { nested: Some(nested), ..Self::of(name.into(), factory) }
    }

    /// Sets the rule for restarts. Permanent by default.
    #[must_use]
    pub fn restart(mut self, restart: Restart) -> Self {
        self.rules.restart = restart;
        self
    }

    /// Makes the next children wait until this one calls [`ChildContext::ready`].
    #[must_use]
    pub fn waits_for_ready(mut self) -> Self {
        self.rules.waits_for_ready = true;
        self
    }

    /// Makes the child optional: no other child waits for it, its failures restart it alone, use no
    /// budget, and never escalate.
    #[must_use]
    pub fn optional(mut self) -> Self {
        self.rules.is_optional = true;
        self
    }

    /// Sets the maximum share of the time in which the child is polled, above 0 and at most 1.
    /// After each poll the child waits in proportion. One long poll cannot be bounded.
    #[must_use]
    pub fn max_poll_share(mut self, share: f64) -> Self {
        self.max_poll_share = Some(share);
        self
    }

    /// Takes the meter away: polls of the child are neither counted nor timed, and cost no look at
    /// the clock. For children of very many short polls.
    #[must_use]
    pub fn unmetered(mut self) -> Self {
        self.is_metered = false;
        self
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        self.rules.name.as_str()
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        require(!self.name().is_empty(), "child", "must have a name")?;
        let Some(share) = self.max_poll_share else { return Ok(()) };
        require(self.is_metered, "max_poll_share", "must not be set for a child that is not metered")?;
        require_share(share, "max_poll_share")
    }

    pub(super) fn rules(&self) -> &ChildRules {
        &self.rules
    }

    pub(super) fn factory(&self) -> Factory {
        self.factory.clone()
    }

    pub(super) fn share(&self) -> Option<f64> {
        self.max_poll_share
    }

    pub(super) fn is_metered(&self) -> bool {
        self.is_metered
    }

    pub(super) fn nested(&self) -> Option<&Supervisor> {
        self.nested.as_ref()
    }
}

crate::build::debug_fields!(Child, |this| name: this.rules.name, restart: this.rules.restart);
