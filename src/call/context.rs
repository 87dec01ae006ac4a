//! The context of an attempt: the facts that policies and operations can read about their call.
use std::time::Duration;

use super::{Operation, deadline::Deadline, repeats::Repeats};
use crate::{
    budget::RetryBudget,
    outcome::Priority,
    time::{Clock, Instant},
};

/// The context of one attempt: its number, its deadline, and the retries around it.
///
/// Each policy passes it inwards, down to the operation. To carry it into a pipeline that the
/// operation itself calls, take it as an [`AttemptInfo`] by
/// [`Pipeline::call_with`](super::Pipeline::call_with), and enter the inner pipeline by
/// [`Pipeline::call_within`](super::Pipeline::call_within).
///
/// It is one pointer to a chain of frames. Each frame lives in the future of the policy that added
/// it, so nothing is copied on the way in. Queries walk outwards, and only failures make them.
#[derive(Clone, Copy, Debug)]
pub struct CallContext<'a>(&'a Frame<'a>);

/// The facts that one policy adds to the context; see [`CallContext::retrying_on`].
#[derive(Debug)]
pub(crate) struct Frame<'a> {
    outer: Option<&'a Frame<'a>>,
    adds: Adds<'a>,
}

#[derive(Debug)]
enum Adds<'a> {
    Top {
        idempotent: Option<bool>,
        priority: Option<Priority>,
        operation: Option<&'static str>,
    },
    Attempt {
        number: u32,
        budget: Option<&'a RetryBudget>,
        /// Failures that the retry repeats if the operation may run twice.
        repeats: Repeats,
        /// `true` if the retry treats unmarked operations as idempotent.
        assumes: bool,
    },
    /// The request of this attempt cannot be made again, so no retry of this call repeats it.
    #[cfg_attr(not(feature = "tower"), allow(dead_code, reason = "made by the tower layer alone"))]
    Once,
    Hedge(u32),
    Deadline(&'a Deadline<'a>),
    Outside {
        attempt: AttemptInfo,
        idempotent: Option<bool>,
        priority: Option<Priority>,
        operation: Option<&'static str>,
    },
}

impl<'a> Frame<'a> {
    /// Returns the context with this frame innermost.
    pub(crate) const fn context(&'a self) -> CallContext<'a> {
        CallContext(self)
    }

    fn outwards(&self) -> impl Iterator<Item = &Adds<'a>> {
        std::iter::successors(Some(self), |frame| frame.outer).map(|frame| &frame.adds)
    }
}

impl<'a> CallContext<'a> {
    /// Creates the context of this operation in an outermost call.
    #[inline]
    pub(crate) fn of(operation: &impl Operation) -> CallContext<'static> {
        Self::outermost(operation.name().unwrap_or(&NAMELESS), operation.is_idempotent(), operation.priority())
    }

    #[inline]
    fn outermost(
        name: &'static OperationName,
        idempotent: Option<bool>,
        priority: Option<Priority>,
    ) -> CallContext<'static> {
        CallContext(
            &name.tops[idempotent.map_or(0, |yes| usize::from(yes) + 1)]
                [priority.map_or(0, |priority| priority.index() + 1)],
        )
    }

    /// Returns the operation's [name](super::named), if it has one.
    pub fn operation(self) -> Option<&'static str> {
        self.0.outwards().find_map(|adds| match adds {
            Adds::Top { operation, .. } | Adds::Outside { operation, .. } => *operation,
            Adds::Attempt { .. } | Adds::Once | Adds::Hedge(_) | Adds::Deadline(_) => None,
        })
    }

    /// Returns the number of the attempt, from 1.
    pub fn attempt(self) -> u32 {
        let number = self.0.outwards().find_map(|adds| match adds {
            Adds::Attempt { number, .. } => Some(*number),
            _ => None,
        });
        number.unwrap_or(1)
    }

    /// Returns `true` if a retry around this may make another attempt. An inner retry leaves to it
    /// the failures that it repeats.
    #[inline]
    pub fn is_retried(self) -> bool {
        !self.repeats().is_nothing()
    }

    /// Returns the failures after which a retry around this makes another attempt.
    pub(crate) fn repeats(self) -> Repeats {
        let (mut repeats, mut once) = (Repeats::NOTHING, false);
        for adds in self.0.outwards() {
            match adds {
                Adds::Attempt { repeats: these, assumes, .. } if !once && !these.is_nothing() => {
                    repeats = repeats.or(self.allowed(*these, *assumes));
                }
                Adds::Once => once = true,
                Adds::Outside { attempt, .. } => repeats = repeats.or(attempt.repeats),
                Adds::Top { .. } | Adds::Attempt { .. } | Adds::Hedge(_) | Adds::Deadline(_) => {}
            }
        }
        repeats
    }

    /// Returns those of `repeats` that this operation allows.
    pub(crate) fn allowed(self, repeats: Repeats, assumes: bool) -> Repeats {
        if self.is_idempotent().unwrap_or(assumes) { repeats } else { repeats.unsent() }
    }

    /// Returns the number of this attempt among the concurrent attempts of a hedge: 0 for the
    /// first, and without a hedge.
    pub fn hedge(self) -> u32 {
        let number = self.0.outwards().find_map(|adds| match adds {
            Adds::Hedge(n) => Some(*n),
            Adds::Outside { attempt, .. } => Some(attempt.hedge),
            Adds::Top { .. } | Adds::Attempt { .. } | Adds::Once | Adds::Deadline(_) => None,
        });
        number.unwrap_or(0)
    }

    /// Returns `true` if a policy around this, in this pipeline or an outer one, has already
    /// counted the call in the budget `own`.
    pub(crate) fn has_paid_into(self, own: &RetryBudget) -> bool {
        self.0.outwards().any(|adds| match adds {
            Adds::Attempt { budget, .. } => budget.is_some_and(|theirs| theirs.is_same(own)),
            Adds::Outside { attempt, .. } => attempt.paid == own.id(),
            Adds::Top { .. } | Adds::Once | Adds::Hedge(_) | Adds::Deadline(_) => false,
        })
    }

    /// Returns the [`RetryBudget::id`] of the innermost budget that counted the call, or 0.
    fn paid(self) -> usize {
        let paid = self.0.outwards().find_map(|adds| match adds {
            Adds::Attempt { budget, .. } => budget.map(RetryBudget::id),
            Adds::Outside { attempt, .. } => Some(attempt.paid),
            Adds::Top { .. } | Adds::Once | Adds::Hedge(_) | Adds::Deadline(_) => None,
        });
        paid.unwrap_or_default()
    }

    /// Returns the operation's idempotence mark; `None` if the operation is not marked. An unmarked
    /// operation inside an attempt of one that must not run twice must not run twice either.
    pub fn is_idempotent(self) -> Option<bool> {
        self.0.outwards().find_map(|adds| match adds {
            Adds::Top { idempotent, .. } => *idempotent,
            Adds::Outside { attempt, idempotent, .. } => idempotent.or(attempt.only_once.then_some(false)),
            Adds::Attempt { .. } | Adds::Once | Adds::Hedge(_) | Adds::Deadline(_) => None,
        })
    }

    /// Returns the priority: the operation's mark, or the outer call's, or [`Priority::Normal`].
    #[inline]
    pub fn priority(self) -> Priority {
        self.marked_priority().unwrap_or_default()
    }

    fn marked_priority(self) -> Option<Priority> {
        self.0.outwards().find_map(|adds| match adds {
            Adds::Top { priority, .. } => *priority,
            Adds::Outside { attempt, priority, .. } => priority.or(attempt.priority),
            Adds::Attempt { .. } | Adds::Once | Adds::Hedge(_) | Adds::Deadline(_) => None,
        })
    }

    /// Returns the deadline of the call, if a time-out or a caller's deadline surrounds it. Reads
    /// the clock of a time-out that has not started to count yet.
    pub fn deadline(self) -> Option<Instant> {
        self.deadline_by(None)
    }

    /// As [`deadline`](Self::deadline), with a reading of a clock: see [`Deadline::at_by`].
    pub(super) fn deadline_by(self, reading: Option<(&Clock, Instant)>) -> Option<Instant> {
        // The innermost is the nearest: each is clipped to those around it.
        self.0.outwards().find_map(|adds| match adds {
            Adds::Deadline(deadline) => Some(deadline.at_by(reading)),
            Adds::Outside { attempt, .. } => attempt.deadline,
            Adds::Top { .. } | Adds::Attempt { .. } | Adds::Once | Adds::Hedge(_) => None,
        })
    }

    pub(super) fn nearest_deadline(self) -> Option<&'a Deadline<'a>> {
        let mut next = Some(self.0);
        while let Some(frame) = next {
            if let Adds::Deadline(deadline) = frame.adds {
                return Some(deadline);
            }
            next = frame.outer;
        }
        None
    }

    /// Returns the deadline with which the caller entered the pipeline, if this is the context of
    /// the outermost policy. Reads one frame, so it costs a call next to nothing.
    #[inline]
    pub(crate) const fn entered_with_deadline(self) -> Option<Instant> {
        match &self.0.adds {
            Adds::Outside { attempt, .. } => attempt.deadline,
            _ => None,
        }
    }

    /// Creates the frame of a retry for attempt number `n`. The retry counted the call in `budget`
    /// and repeats these failures. Keep the frame while that attempt runs, and pass its
    /// [`context`](Frame::context) inwards.
    #[inline]
    pub(crate) const fn retrying_on(
        &self,
        n: u32,
        budget: Option<&'a RetryBudget>,
        repeats: Repeats,
        assumes: bool,
    ) -> Frame<'a> {
        Frame { outer: Some(self.0), adds: Adds::Attempt { number: n, budget, repeats, assumes } }
    }

    #[cfg(feature = "tower")]
    pub(crate) const fn once(&self) -> Frame<'a> {
        Frame { outer: Some(self.0), adds: Adds::Once }
    }

    /// Creates the frame of a hedge for its `n`th attempt beside the first.
    #[inline]
    pub(crate) const fn hedging(&self, n: u32) -> Frame<'a> {
        Frame { outer: Some(self.0), adds: Adds::Hedge(n) }
    }

    #[inline]
    pub(crate) const fn until(&self, deadline: &'a Deadline<'a>) -> Frame<'a> {
        Frame { outer: Some(self.0), adds: Adds::Deadline(deadline) }
    }

    /// Returns `true` if the call runs inside an attempt of another pipeline, which reports how it
    /// ends.
    pub(super) fn is_inside_another(self) -> bool {
        self.0.outwards().any(|adds| matches!(adds, Adds::Outside { attempt, .. } if attempt.of_attempt))
    }

    /// Returns an owned copy for the operation: without borrows, and with the deadline computed.
    pub fn info(self) -> AttemptInfo {
        AttemptInfo {
            number: self.attempt(),
            repeats: self.repeats(),
            hedge: self.hedge(),
            deadline: self.deadline(),
            priority: self.marked_priority(),
            only_once: self.is_idempotent() == Some(false),
            paid: self.paid(),
            of_attempt: true,
        }
    }
}

/// The name of an operation: a static for [`named`](super::named).
#[derive(Debug)]
pub struct OperationName {
    name: Option<&'static str>,
    /// Outermost frames by mark and priority, made at compile time: a call copies a pointer.
    tops: [[Frame<'static>; 5]; 3],
}

/// The name of operations that have none.
static NAMELESS: OperationName = OperationName::of(None);

impl OperationName {
    /// Creates a name.
    pub const fn new(name: &'static str) -> Self {
        Self::of(Some(name))
    }

    /// Returns the name as text.
    pub const fn as_str(&self) -> &'static str {
        match self.name {
            Some(name) => name,
            None => "",
        }
    }

    const fn of(name: Option<&'static str>) -> Self {
        Self { name, tops: [tops(name, None), tops(name, Some(false)), tops(name, Some(true))] }
    }
}

const fn tops(operation: Option<&'static str>, idempotent: Option<bool>) -> [Frame<'static>; 5] {
    const fn top(
        operation: Option<&'static str>,
        idempotent: Option<bool>,
        priority: Option<Priority>,
    ) -> Frame<'static> {
        Frame { outer: None, adds: Adds::Top { idempotent, priority, operation } }
    }
    let [low, normal, high, critical] = Priority::ALL;
    [
        top(operation, idempotent, None),
        top(operation, idempotent, Some(low)),
        top(operation, idempotent, Some(normal)),
        top(operation, idempotent, Some(high)),
        top(operation, idempotent, Some(critical)),
    ]
}

/// An owned copy of an attempt's context: for spawned tasks, inner calls, or a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttemptInfo {
    number: u32,
    /// Failures after which a retry around it makes another attempt.
    repeats: Repeats,
    hedge: u32,
    deadline: Option<Instant>,
    priority: Option<Priority>,
    /// `true` if the operation must not run twice.
    only_once: bool,
    /// [`RetryBudget::id`] of the budget that counted the call; 0 if none did.
    paid: usize,
    /// `true` if it is the copy of an attempt's context, `false` if it came from outside.
    of_attempt: bool,
}

impl AttemptInfo {
    /// Creates the context of a first attempt with a deadline from outside, say from a header.
    pub const fn with_deadline(deadline: Instant) -> Self {
        Self {
            number: 1,
            repeats: Repeats::NOTHING,
            hedge: 0,
            deadline: Some(deadline),
            priority: None,
            only_once: false,
            paid: 0,
            of_attempt: false,
        }
    }

    /// Sets the priority of the call, for a priority that came from outside. An inner operation
    /// with a mark keeps its own.
    #[must_use]
    pub const fn with_priority(mut self, priority: Priority) -> Self {
        self.priority = Some(priority);
        self
    }

    /// Returns the number of the attempt, from 1.
    pub const fn number(&self) -> u32 {
        self.number
    }

    /// Returns the priority of the call; [`Priority::Normal`] if none was set.
    pub fn priority(&self) -> Priority {
        self.priority.unwrap_or_default()
    }

    /// Returns the number of this attempt among the concurrent attempts of a hedge: 0 for the
    /// first, and without a hedge. In a header it tells the other side that the request is a hedge.
    pub const fn hedge(&self) -> u32 {
        self.hedge
    }

    /// Returns the deadline of the call, by the clock of the policies around it.
    pub const fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Returns the time left at `now`, for a header such as gRPC's `grpc-timeout`.
    pub fn remaining(&self, now: Instant) -> Option<Duration> {
        self.deadline.map(|at| at - now)
    }

    pub(super) fn frame(self, of: &impl Operation) -> Frame<'static> {
        let (idempotent, priority) = (of.is_idempotent(), of.priority());
        let operation = of.name().map(OperationName::as_str);
        Frame { outer: None, adds: Adds::Outside { attempt: self, idempotent, priority, operation } }
    }
}
