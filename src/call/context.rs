//! What a policy and an operation may know about the call they are part of.
use std::time::Duration;

use super::{Operation, deadline::Deadline, repeats::Repeats};
use crate::{
    budget::RetryBudget,
    outcome::Priority,
    time::{Clock, Instant},
};

/// The surroundings of one attempt: its number, its deadline, whether a retry stands around it.
///
/// It is handed inwards, from policy to policy to operation. To carry it into a pipeline that the operation itself calls,
/// take it with [`Pipeline::call_with`](super::Pipeline::call_with) as an [`AttemptInfo`] and enter the inner pipeline by
/// [`Pipeline::call_within`](super::Pipeline::call_within).
///
/// One pointer to a chain of frames, each kept in the future of the policy that added it: nothing is copied on the way in, and
/// the questions, which only failures ask, walk outwards.
#[derive(Clone, Copy, Debug)]
pub struct CallContext<'a>(&'a Frame<'a>);

/// What one policy adds to the surroundings; lives in that policy's future. See [`CallContext::retrying`].
#[derive(Debug)]
pub struct Frame<'a> {
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
        /// The failures that the retry repeats where the operation may run twice.
        repeats: Repeats,
        /// Whether the retry takes unmarked operations for ones that may.
        assumes: bool,
    },
    /// The request of this attempt cannot be made again: no retry of this call repeats it.
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
    /// The surroundings with this frame innermost.
    pub const fn context(&'a self) -> CallContext<'a> {
        CallContext(self)
    }

    fn outwards(&self) -> impl Iterator<Item = &Adds<'a>> {
        std::iter::successors(Some(self), |frame| frame.outer).map(|frame| &frame.adds)
    }
}

impl<'a> CallContext<'a> {
    /// Returns the surroundings of a call that nothing surrounds; `idempotent` as in
    /// [`Operation::is_idempotent`].
    #[inline]
    pub fn top(idempotent: Option<bool>) -> CallContext<'static> {
        Self::outermost(&NAMELESS, idempotent, None)
    }

    /// The surroundings of this operation, where nothing surrounds its call.
    #[inline]
    pub fn of(operation: &impl Operation) -> CallContext<'static> {
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

    /// What the operation is [called](super::named), if it has a name.
    pub fn operation(self) -> Option<&'static str> {
        self.0.outwards().find_map(|adds| match adds {
            Adds::Top { operation, .. } | Adds::Outside { operation, .. } => *operation,
            Adds::Attempt { .. } | Adds::Once | Adds::Hedge(_) | Adds::Deadline(_) => None,
        })
    }

    /// The number of the attempt, from 1.
    pub fn attempt(self) -> u32 {
        let number = self.0.outwards().find_map(|adds| match adds {
            Adds::Attempt { number, .. } => Some(*number),
            _ => None,
        });
        number.unwrap_or(1)
    }

    /// Returns whether a retry around this may make another attempt: then an inner one leaves to it the failures that it repeats.
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

    /// Returns which of these failures may be repeated for this operation.
    pub(crate) fn allowed(self, repeats: Repeats, assumes: bool) -> Repeats {
        if self.is_idempotent().unwrap_or(assumes) { repeats } else { repeats.unsent() }
    }

    /// Which of the attempts that a hedge runs beside each other this is: 0 for the first, and where there is no hedge.
    pub fn hedge(self) -> u32 {
        let number = self.0.outwards().find_map(|adds| match adds {
            Adds::Hedge(n) => Some(*n),
            Adds::Outside { attempt, .. } => Some(attempt.hedge),
            Adds::Top { .. } | Adds::Attempt { .. } | Adds::Once | Adds::Deadline(_) => None,
        });
        number.unwrap_or(0)
    }

    /// Returns whether a policy around this, in this pipeline or in one around it, has told the budget of the call already.
    pub(crate) fn has_paid_into(self, own: &RetryBudget) -> bool {
        self.0.outwards().any(|adds| match adds {
            Adds::Attempt { budget, .. } => budget.is_some_and(|theirs| theirs.is_same(own)),
            Adds::Outside { attempt, .. } => attempt.paid == own.id(),
            Adds::Top { .. } | Adds::Once | Adds::Hedge(_) | Adds::Deadline(_) => false,
        })
    }

    /// Returns the budget that was told of the call, as [`RetryBudget::id`]; of several the innermost.
    fn paid(self) -> usize {
        let paid = self.0.outwards().find_map(|adds| match adds {
            Adds::Attempt { budget, .. } => budget.map(RetryBudget::id),
            Adds::Outside { attempt, .. } => Some(attempt.paid),
            Adds::Top { .. } | Adds::Once | Adds::Hedge(_) | Adds::Deadline(_) => None,
        });
        paid.unwrap_or_default()
    }

    /// Returns whether running the operation twice is as good as once; `None` where the operation
    /// is not marked. An unmarked operation inside an attempt of one that must not run twice must
    /// not run twice either.
    pub fn is_idempotent(self) -> Option<bool> {
        self.0.outwards().find_map(|adds| match adds {
            Adds::Top { idempotent, .. } => *idempotent,
            Adds::Outside { attempt, idempotent, .. } => idempotent.or(attempt.only_once.then_some(false)),
            Adds::Attempt { .. } | Adds::Once | Adds::Hedge(_) | Adds::Deadline(_) => None,
        })
    }

    /// How much the call matters: as its operation is marked, or else as the call around it is; [`Priority::Normal`] where nobody says.
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

    /// When the call's time is over, if a time-out or a caller's deadline surrounds it. Reads the time-out's clock if that
    /// time-out has not yet started to count.
    pub fn deadline(self) -> Option<Instant> {
        self.deadline_by(None)
    }

    /// The same, with a reading of a clock: see [`Deadline::at_by`].
    pub(super) fn deadline_by(self, reading: Option<(&Clock, Instant)>) -> Option<Instant> {
        // The innermost is the nearest: each is clipped to those around it.
        self.0.outwards().find_map(|adds| match adds {
            Adds::Deadline(deadline) => Some(deadline.at_by(reading)),
            Adds::Outside { attempt, .. } => attempt.deadline,
            Adds::Top { .. } | Adds::Attempt { .. } | Adds::Once | Adds::Hedge(_) => None,
        })
    }

    /// Returns the innermost time-out's deadline.
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

    /// Returns the deadline with which the pipeline was entered, to its outermost policy. Looks at one frame: no call pays for it.
    #[inline]
    pub(crate) const fn entered_with_deadline(self) -> Option<Instant> {
        match &self.0.adds {
            Adds::Outside { attempt, .. } => attempt.deadline,
            _ => None,
        }
    }

    /// What a retry adds for attempt number `n`; keep it while that attempt runs, and hand its
    /// [`context`](Frame::context) inwards.
    #[inline]
    pub const fn retrying(&self, n: u32) -> Frame<'a> {
        Frame {
            outer: Some(self.0),
            adds: Adds::Attempt { number: n, budget: None, repeats: Repeats::ALL, assumes: true },
        }
    }

    /// Returns what a retry adds that has told this budget of the call, and repeats these failures.
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

    /// Returns what an operation adds that cannot be run again.
    #[cfg(feature = "tower")]
    pub(crate) const fn once(&self) -> Frame<'a> {
        Frame { outer: Some(self.0), adds: Adds::Once }
    }

    /// What a hedge adds for its `n`th attempt beside the first.
    #[inline]
    pub const fn hedging(&self, n: u32) -> Frame<'a> {
        Frame { outer: Some(self.0), adds: Adds::Hedge(n) }
    }

    /// What a time-out adds.
    #[inline]
    pub(crate) const fn until(&self, deadline: &'a Deadline<'a>) -> Frame<'a> {
        Frame { outer: Some(self.0), adds: Adds::Deadline(deadline) }
    }

    /// What of this an operation may keep: nothing borrowed, the deadline read.
    pub fn info(self) -> AttemptInfo {
        AttemptInfo {
            number: self.attempt(),
            repeats: self.repeats(),
            hedge: self.hedge(),
            deadline: self.deadline(),
            priority: self.marked_priority(),
            only_once: self.is_idempotent() == Some(false),
            paid: self.paid(),
        }
    }
}

/// What an operation is called: a static of your own, for [`named`](super::named).
#[derive(Debug)]
pub struct OperationName {
    name: Option<&'static str>,
    /// The outermost frame of each sort of call, made when compiled: a call copies a pointer.
    tops: [[Frame<'static>; 5]; 3],
}

/// What most operations are called.
static NAMELESS: OperationName = OperationName::of(None);

impl OperationName {
    /// This name.
    pub const fn new(name: &'static str) -> Self {
        Self::of(Some(name))
    }

    /// The name as text.
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

/// What an operation may know about its attempt, free of borrows: hand it to tasks, to inner calls, into a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttemptInfo {
    number: u32,
    /// The failures after which a retry around it makes another attempt.
    repeats: Repeats,
    hedge: u32,
    deadline: Option<Instant>,
    priority: Option<Priority>,
    /// The operation must not run twice.
    only_once: bool,
    /// The retry budget that was told of the call; 0 where none was.
    paid: usize,
}

impl AttemptInfo {
    /// The first attempt of a call with this deadline: for a caller who got one from outside, say in a header.
    pub const fn with_deadline(deadline: Instant) -> Self {
        Self {
            number: 1,
            repeats: Repeats::NOTHING,
            hedge: 0,
            deadline: Some(deadline),
            priority: None,
            only_once: false,
            paid: 0,
        }
    }

    /// The same, and the call matters so much: for a caller who got both from outside. An operation inside that is marked itself keeps
    /// its own mark.
    #[must_use]
    pub const fn with_priority(mut self, priority: Priority) -> Self {
        self.priority = Some(priority);
        self
    }

    /// The number of the attempt, from 1.
    pub const fn number(&self) -> u32 {
        self.number
    }

    /// How much the call matters; [`Priority::Normal`] where nobody said.
    pub fn priority(&self) -> Priority {
        self.priority.unwrap_or_default()
    }

    /// Which of the attempts that a hedge runs beside each other this is: 0 for the first, and where there is no hedge. For a
    /// header by which the other side can tell a hedge.
    pub const fn hedge(&self) -> u32 {
        self.hedge
    }

    /// When the call's time is over, by the clock of the policies around it.
    pub const fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// How much of the call's time is left at `now`: for a header such as gRPC's `grpc-timeout`.
    pub fn remaining(&self, now: Instant) -> Option<Duration> {
        self.deadline.map(|at| at - now)
    }

    /// The outermost frame of a call inside this attempt.
    pub(super) fn frame(self, of: &impl Operation) -> Frame<'static> {
        let (idempotent, priority) = (of.is_idempotent(), of.priority());
        let operation = of.name().map(OperationName::as_str);
        Frame { outer: None, adds: Adds::Outside { attempt: self, idempotent, priority, operation } }
    }
}
