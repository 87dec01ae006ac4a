//! Events of a console.
use crate::observe::Traced;

/// Event of a [`Console`](super::Console).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConsoleEvent {
    /// An operator begins to act on a component. [`Acted`](Self::Acted) follows, unless the process
    /// ends before.
    Began {
        /// The operator.
        user: String,
        /// Name of the component in the console.
        component: String,
        /// The action as a word, such as `isolate`.
        action: String,
        /// Part of the component that the action is about, such as the id of a saga; empty for the
        /// whole.
        of: String,
        /// Note of the operator; empty if there is none.
        note: String,
    },
    /// An operator acted on a component.
    Acted {
        /// The operator.
        user: String,
        /// Name of the component in the console.
        component: String,
        /// The action as a word, such as `isolate`.
        action: String,
        /// Part of the component that the action was about, such as the id of a saga; empty for the
        /// whole.
        of: String,
        /// Note of the operator; empty if there is none.
        note: String,
        /// Result in words; the error if the action failed.
        result: Result<String, String>,
    },
    /// An action of a user was refused before it began. A request without any right makes no event.
    Refused {
        /// The user.
        user: String,
        /// Name of the component that the request named.
        component: String,
        /// The action that the request named.
        action: String,
        /// Reason.
        reason: ConsoleRefusal,
    },
}

/// Reason for which an action was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ConsoleRefusal {
    /// The request has no right to act.
    Access,
    /// The request is not from a page of the console: it comes from another site.
    Forged,
    /// The token of the page is older than an hour, of another user or of another process.
    Stale,
    /// The form is malformed, or lacks a note.
    Malformed,
    /// The state has changed since the page was made, or another operator acts now.
    Conflict,
}

impl ConsoleRefusal {
    /// Returns the reason as a word: `forged`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Access => "access",
            Self::Forged => "forged",
            Self::Stale => "stale",
            Self::Malformed => "malformed",
            Self::Conflict => "conflict",
        }
    }
}

impl Traced for ConsoleEvent {
    fn wanted() -> bool {
        tracing::enabled!(target: "steadfast::console", tracing::Level::INFO)
    }

    fn trace(&self, console: &str) {
        const TARGET: &str = "steadfast::console";
        match self {
            Self::Began { user, component, action, of, note } => {
                tracing::info!(target: TARGET, console, user, component, action, of, note, "action begins");
            }
            Self::Acted { user, component, action, of, note, result: Ok(result) } => {
                tracing::info!(target: TARGET, console, user, component, action, of, note, result, "acted");
            }
            Self::Acted { user, component, action, of, note, result: Err(error) } => {
                tracing::warn!(target: TARGET, console, user, component, action, of, note, error, "action failed");
            }
            Self::Refused { user, component, action, reason } => {
                let reason = reason.as_str();
                tracing::warn!(target: TARGET, console, user, component, action, reason, "action refused");
            }
        }
    }
}
