//! Components that a console shows.
use std::time::Duration;

use super::{
    readout::{Action, ReadOut},
    settings::Settings,
};
use crate::{
    circuit_breaker::CircuitBreaker,
    port::BoxFuture,
    time::{Clock, Timestamp},
};

/// Component that a [console](super::Console) can show. No type outside this crate can be one.
pub trait Panel {
    #[doc(hidden)]
    fn view(&self) -> View;
}

/// The read-out and the actions of a component, which shares the component's state.
pub struct View(pub(super) Box<dyn Source>);

/// Question to a component.
#[derive(Debug, Clone)]
pub(super) struct Look {
    /// Part of the component, such as the id of a saga; `None` for the whole.
    pub(super) of: Option<String>,
    pub(super) hides_bodies: bool,
    /// Wall time, for ages of messages.
    pub(super) wall: Timestamp,
    pub(super) clock: Clock,
    /// Time limit of the read-out.
    pub(super) limit: Duration,
}

/// A component, as the console reads it and acts on it.
pub(super) trait Source: Send + Sync {
    /// Returns the kind of component: `circuit breaker`.
    fn kind(&self) -> &'static str;

    /// Returns `true` if a read-out asks an engine. It is made less often.
    fn asks_engine(&self) -> bool {
        false
    }

    /// Returns `true` if the component has parts, such as sagas. Otherwise none is looked for.
    fn has_parts(&self) -> bool {
        false
    }

    /// Returns `true` if an action that is offered now does what the operator was told.
    fn holds(&self, order: &Order, now: &Action) -> bool {
        now.version == order.version
    }

    /// Begins to count what happens, for the figures of the last minutes. It is called once, when
    /// the console is built. `beside` are the breakers that the console shows by themselves.
    fn start(&mut self, _clock: &Clock, _beside: &[CircuitBreaker]) {}

    /// Returns the breaker that this is.
    fn breaker(&self) -> Option<&CircuitBreaker> {
        None
    }

    /// Returns the settings of the component, or of a part of it, if they can change in use.
    fn settings(&self, _of: Option<&str>) -> Option<Box<dyn Settings + '_>> {
        None
    }

    /// Reads the state of the component, or of a part of it. The error says that it is away or that
    /// there is no such part.
    fn read<'a>(&'a self, look: &'a Look) -> BoxFuture<'a, Result<ReadOut, String>>;

    /// Does what an action of the last read-out says, and tells its result.
    fn act<'a>(&'a self, order: &'a Order) -> BoxFuture<'a, Result<String, String>>;
}

/// An action that was confirmed, and whose version holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Order {
    pub(super) action: String,
    pub(super) of: Option<String>,
    pub(super) note: String,
    pub(super) version: String,
    /// Number of the last action on this part when its page was made.
    pub(super) acts: u64,
}

impl Order {
    /// Returns the part of the component that the action is about.
    pub(super) fn part(&self) -> &str {
        self.of.as_deref().unwrap_or_default()
    }
}

/// Returns a read-out that is ready at once.
pub(super) fn ready<T: Send + 'static>(result: T) -> BoxFuture<'static, T> {
    Box::pin(std::future::ready(result))
}

/// Returns the error for an action that the component does not have.
pub(super) fn unknown(order: &Order) -> Result<String, String> {
    Err(format!("there is no action `{}`", order.action))
}
