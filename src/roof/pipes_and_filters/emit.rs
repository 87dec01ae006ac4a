//! Results of a filter's handler.
use std::{borrow::Cow, fmt};

use crate::{outcome::CallError, queue::Message, work::Disposition};

/// Result of a filter's handler: the messages that it emits.
///
/// A handler may also return a `Result<Emit, E>`, whose error is a failed attempt, or a
/// [`Disposition`], such as a snooze or a dead letter.
///
/// ```
/// use steadfast::{pipes_and_filters::Emit, queue::Message};
///
/// let parsed = |line: &str| match line.split_once(' ') {
///     Some((name, value)) => Emit::many([name, value].map(|part| Message::new(part.to_owned()))),
///     None if line.is_empty() => Emit::none(),
///     None => Emit::to("odd", Message::new(line.to_owned())),
/// };
/// assert_eq!(["", "a", "a b"].map(|line| parsed(line).len()), [0, 1, 2]);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Emit(pub(super) Emitted);

/// The messages, each with the name of its output, or another end of the delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Emitted {
    Messages(Vec<(Option<Cow<'static, str>>, Message)>),
    Otherwise(Disposition),
}

impl Emit {
    /// Returns no message: the handled message ends here.
    pub const fn none() -> Self {
        Self(Emitted::Messages(Vec::new()))
    }

    /// Returns one message, for the output without a name.
    pub fn one(message: Message) -> Self {
        Self(Emitted::Messages(vec![(None, message)]))
    }

    /// Returns several messages, for the output without a name, in this order.
    pub fn many(messages: impl IntoIterator<Item = Message>) -> Self {
        Self(Emitted::Messages(messages.into_iter().map(|message| (None, message)).collect()))
    }

    /// Returns one message, for the output of this name.
    pub fn to(output: impl Into<Cow<'static, str>>, message: Message) -> Self {
        Self(Emitted::Messages(vec![(Some(output.into()), message)]))
    }

    /// Adds the messages of `other` behind these. If either is no message but another
    /// [`Disposition`], that is the result.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        match (self.0, other.0) {
            (Emitted::Messages(mut messages), Emitted::Messages(more)) => {
                messages.extend(more);
                Self(Emitted::Messages(messages))
            }
            (Emitted::Messages(_), otherwise) | (otherwise, _) => Self(otherwise),
        }
    }

    /// Converts the result of a call through a pipeline, as
    /// [`Disposition::of_call`] does: a call that a policy rejected is not an attempt.
    pub fn of_call<E: fmt::Display>(result: Result<Self, CallError<E>>) -> Self {
        result.unwrap_or_else(|error| Disposition::of_call(Err::<(), _>(error)).into())
    }

    /// Returns the number of messages.
    pub fn len(&self) -> usize {
        match &self.0 {
            Emitted::Messages(messages) => messages.len(),
            Emitted::Otherwise(_) => 0,
        }
    }

    /// Returns `true` if there is no message.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl From<Disposition> for Emit {
    /// Converts any other end of a delivery. The messages of a
    /// [`Forward`](Disposition::Forward) are sent as they are, without a lineage id.
    fn from(disposition: Disposition) -> Self {
        match disposition {
            Disposition::Complete => Self::none(),
            other => Self(Emitted::Otherwise(other)),
        }
    }
}

impl<E: fmt::Display> From<Result<Self, E>> for Emit {
    fn from(result: Result<Self, E>) -> Self {
        result.unwrap_or_else(|error| Disposition::retry(error).into())
    }
}
