//! The description of a check.
use std::{fmt, future::Future, sync::Arc};

use serde::Serialize;

use crate::{config::Name, port::BoxFuture};

/// An execution of a check, whose error is a text.
pub(super) type Execution = BoxFuture<'static, Result<(), String>>;

/// The function of a check.
type Execute = Arc<dyn Fn() -> Execution + Send + Sync>;

/// Kind of a check, which decides what its failure may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CheckKind {
    /// It depends on this process alone: a restart, or another member, may help.
    Local,
    /// It depends on something that other processes use, too: a restart does not help.
    Dependency,
}

impl CheckKind {
    /// Returns the kind as a word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Dependency => "dependency",
        }
    }
}

/// Group of checks, for one reader of reports.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Group {
    /// Unhealthy if a restart would help. It has local checks alone.
    Liveness,
    /// Unhealthy while no requests should come.
    Readiness,
    /// Unhealthy until the process has started. It has local checks alone, since a platform kills a
    /// process that does not start in time.
    Startup,
    /// A group of your own.
    Tag(Name),
}

/// A check of a [`Health`](super::Health): a name, and a function that is called for each
/// execution.
///
/// ```
/// use steadfast::health::{Check, Group};
///
/// async fn ping() -> Result<(), std::io::Error> { Ok(()) }
///
/// let database = Check::dependency("orders-db", ping).required();
/// let worker = Check::local("worker", || async { Ok::<_, String>(()) }).in_group(Group::Liveness);
/// # drop((database, worker));
/// ```
#[derive(Clone)]
pub struct Check {
    pub(super) name: Name,
    pub(super) kind: CheckKind,
    pub(super) is_required: bool,
    pub(super) groups: Vec<Group>,
    execute: Execute,
}

impl Check {
    /// Creates a check of something that other processes use, too, such as a database. It is not
    /// required, and belongs to [readiness](Group::Readiness).
    pub fn dependency<F, E>(name: impl Into<Name>, execute: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: fmt::Display,
    {
        Self::new(name.into(), CheckKind::Dependency, false, execute)
    }

    /// Creates a check of this process or its machine, such as free space. It is required, and
    /// belongs to [readiness](Group::Readiness).
    pub fn local<F, E>(name: impl Into<Name>, execute: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: fmt::Display,
    {
        Self::new(name.into(), CheckKind::Local, true, execute)
    }

    fn new<F, E>(
        name: Name,
        kind: CheckKind,
        is_required: bool,
        execute: impl Fn() -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: fmt::Display,
    {
        let execute: Execute = Arc::new(move || {
            let execution = execute();
            Box::pin(async move { execution.await.map_err(|error| error.to_string()) })
        });
        Self { name, kind, is_required, groups: Vec::new(), execute }
    }

    /// Makes the check required: its failure makes its groups unhealthy.
    #[must_use]
    pub fn required(mut self) -> Self {
        self.is_required = true;
        self
    }

    /// Makes the check optional: its failure makes its groups degraded.
    #[must_use]
    pub fn optional(mut self) -> Self {
        self.is_required = false;
        self
    }

    /// Adds the check to a group. It belongs to readiness only if it is added to that, or to none.
    #[must_use]
    pub fn in_group(mut self, group: Group) -> Self {
        self.groups.push(group);
        self
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    pub(super) fn belongs_to(&self, group: &Group) -> bool {
        self.groups.contains(group) || self.groups.is_empty() && *group == Group::Readiness
    }

    pub(super) fn execute(&self) -> Execution {
        (self.execute)()
    }
}

crate::build::debug_fields!(Check, |this| name: this.name, kind: this.kind, required: this.is_required);
