//! The async part: the first attempt in place, the others on the heap, once there are any.
use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::atomic::Ordering::Relaxed,
    task::{Context, Poll},
    time::Duration,
};

use super::{
    HedgeEvent,
    attempt_end::{Ended, FailureParts, Plan, Then},
    event::{HedgeCause, SuppressReason},
    policy::HedgeInner,
};
use crate::{
    call::{Attempt, CallContext, Cold, Fork, Forks, Timed},
    outcome::{Cause, FailureKind, Hint, Outcome},
    race::Continued,
    time::Instant,
};

/// The attempt that gave the call its result. A hedged attempt has been kept already.
enum Won {
    First(Outcome),
    Other(Outcome),
}

/// The first wait of the call, and the delay at that time.
#[derive(Clone, Copy)]
struct Began {
    at: Instant,
    delay: Duration,
}

impl HedgeInner {
    /// Makes a call that may be hedged. One `async fn` for both cases, as each nests the type of
    /// the call deeper, and one `.await` in each case: the compiler overlaps no variable that lives
    /// across several, such as `work`, with the work of the other case.
    #[inline]
    pub(super) fn around<A: Attempt>(&self, mut inner: A, cx: CallContext<'_>) -> impl Future<Output = Outcome> + Send {
        async move {
            if self.may_hedge(cx)
                && let Some(forks) = &inner.fork()
            {
                let mut first = forks.next();
                let won = {
                    let work = pin!(attempt(self, &mut first, cx));
                    FirstPoll::new(work, |work, ended| self.go_on(work, ended, forks, cx)).await
                }; // all attempts but the winner are dropped by now
                return match won {
                    Won::First(outcome) => {
                        first.keep();
                        outcome
                    }
                    Won::Other(outcome) => outcome,
                };
            }
            inner.attempt(cx).await
        }
    }

    /// Returns `true` if the failure of a lone attempt ends the call.
    #[cold]
    fn ends_alone(&self, ended: &Ended) -> bool {
        let then = ended.then(&self.settings.load().config);
        if then == Then::Wait(SuppressReason::PushedBack) {
            self.pushed_back(ended);
            let reason = SuppressReason::PushedBack;
            self.tell(|| HedgeEvent::Suppressed { reason, cause: Some(ended.cause()) });
        }
        !matches!(then, Then::Next(_))
    }

    /// Records that the other side asked for a pause: no call is hedged until then.
    fn pushed_back(&self, ended: &Ended) {
        self.quiet_until.fetch_max(ended.quiet_until(self.clock.now()), Relaxed);
    }

    fn begin(&self, cx: CallContext<'_>) -> Began {
        let at = self.clock.now();
        self.deposit(at, cx);
        Began { at, delay: self.settings.load().delay(at) }
    }

    /// Continues after the first poll of the first attempt: alone until its delay ends, then beside
    /// others.
    fn go_on<F: Forks>(
        &self,
        mut work: Pin<&mut (impl Future<Output = Ended> + Send)>,
        mut ended: Option<Ended>,
        forks: &F,
        cx: CallContext<'_>,
    ) -> impl Future<Output = Won> + Send {
        async move {
            let mut began = None;
            if ended.is_none() {
                let Began { at, delay } = *began.insert(self.begin(cx));
                let timer = self.clock.sleep_until(at + delay);
                ended = Timed::new(Continued::new(work.as_mut(), true), timer).await;
                if ended.as_ref().is_some_and(is_success) {
                    self.record(at);
                }
            }
            match ended {
                Some(ended) if ended.is_good() || self.ends_alone(&ended) => Won::First(ended.outcome),
                ended => crate::call::boxed(self.race(work, ended, forks, cx, began)).await,
            }
        }
    }

    /// Continues when the first attempt is late or has failed.
    async fn race<F: Forks>(
        &self,
        first: Pin<&mut (impl Future<Output = Ended> + Send)>,
        ended: Option<Ended>,
        forks: &F,
        cx: CallContext<'_>,
        began: Option<Began>,
    ) -> Won {
        let Began { at: began, delay } = began.unwrap_or_else(|| self.begin(cx));
        let mut call = HedgeCall { hedge: self, cx, plan: Plan::new(self.settings.load().config.max_attempts) };
        let mut first = ended.is_none().then_some(first);
        let mut others: Vec<_> = Vec::new();
        // The failure to return if all attempts fail; the fork is `None` for the first attempt.
        let mut best = None;
        let mut timer = pin!(None);
        let mut failed = false;

        let mut news = ended.map(|ended| (ended, None));
        loop {
            let next = match news.take() {
                None => call.start(HedgeCause::Late { delay }, None),
                Some((ended, fork)) => {
                    if ended.is_good() {
                        drop(others);
                        if is_success(&ended) && !failed {
                            self.record(began);
                        }
                        return call.won(ended, fork);
                    }
                    failed = true;
                    match call.failed(&ended) {
                        Ok(next) => {
                            // A rejection says less than a failure.
                            if best.is_none() || ended.outcome != Outcome::Rejected {
                                best = Some((ended, fork));
                            }
                            next
                        }
                        Err(Over) => {
                            drop(others);
                            return call.lost(ended, fork);
                        }
                    }
                }
            };
            if let Some((hedge, at)) = next {
                others.push((hedge, beside(self, forks, hedge, cx)));
                timer.set(call.plan.is_open().then(|| self.clock.sleep_until(at + delay)));
            } else if !call.plan.is_open() {
                timer.set(None);
            }
            if first.is_none()
                && others.is_empty()
                && let Some((ended, fork)) = best
            {
                return call.lost(ended, fork);
            }
            news = poll_fn(|task| {
                if let Some(work) = &mut first
                    && let Poll::Ready(ended) = work.as_mut().poll(task)
                {
                    first = None;
                    return Poll::Ready(Some((ended, None)));
                }
                for i in 0..others.len() {
                    let (hedge, work) = &mut others[i];
                    let hedge = *hedge;
                    if let Poll::Ready((ended, fork)) = work.as_mut().poll(task) {
                        drop(others.remove(i));
                        return Poll::Ready(Some((ended, Some((hedge, fork)))));
                    }
                }
                match timer.as_mut().as_pin_mut() {
                    Some(timer) => timer.poll(task).map(|()| None),
                    None => Poll::Pending,
                }
            })
            .await;
        }
    }
}

pin_project_lite::pin_project! {
    /// The first attempt: its first poll, and `slow` if that is not enough.
    #[project = FirstPollProj]
    enum FirstPoll<'w, W, F, S> {
        // `Some` until the first poll.
        Begin { begin: Option<(Pin<&'w mut W>, F)> },
        Slow { #[pin] slow: Cold<S> },
    }
}

impl<'w, W, F, S> FirstPoll<'w, W, F, S> {
    #[inline]
    const fn new(work: Pin<&'w mut W>, slow: F) -> Self {
        Self::Begin { begin: Some((work, slow)) }
    }
}

impl<'w, W, F, S> Future for FirstPoll<'w, W, F, S>
where
    W: Future<Output = Ended>,
    F: FnOnce(Pin<&'w mut W>, Option<Ended>) -> S,
    S: Future<Output = Won>,
{
    type Output = Won;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Won> {
        if let FirstPollProj::Begin { begin } = self.as_mut().project()
            && let Some((mut work, slow)) = begin.take()
        {
            let ended = match work.as_mut().poll(task) {
                Poll::Ready(ended) if ended.is_good() => return Poll::Ready(Won::First(ended.outcome)),
                Poll::Ready(ended) => Some(ended),
                Poll::Pending => None,
            };
            let slow = Cold::new(slow(work, ended));
            self.set(Self::Slow { slow });
        }
        match self.project() {
            FirstPollProj::Slow { slow } => slow.poll(task),
            FirstPollProj::Begin { .. } => Poll::Pending, // polled again after it was ready
        }
    }
}

/// An attempt failed with a failure that ends the call.
struct Over;

/// One call between its attempts.
struct HedgeCall<'a> {
    hedge: &'a HedgeInner,
    cx: CallContext<'a>,
    plan: Plan,
}

impl HedgeCall<'_> {
    /// Starts another attempt, if one may start. Returns its number and the time.
    fn start(&mut self, cause: HedgeCause, kind: Option<FailureKind>) -> Option<(u32, Instant)> {
        if !self.plan.is_open() {
            return None;
        }
        let now = self.hedge.clock.now();
        // The budget comes last: a withdrawal is used.
        let reason = if self.hedge.is_quiet(now) {
            SuppressReason::PushedBack
        } else if self.cx.deadline().is_some_and(|deadline| now >= deadline) {
            SuppressReason::Deadline
        } else if self.hedge.budget.as_ref().is_some_and(|budget| !budget.withdraw(now, kind)) {
            SuppressReason::Budget
        } else {
            let hedge = self.plan.start();
            self.hedge.tell(|| HedgeEvent::Hedged { hedge, cause });
            return Some((hedge, now));
        };
        self.hold(reason, || match cause {
            HedgeCause::Late { .. } => None,
            HedgeCause::Failed { cause } => Some(cause),
        });
        None
    }

    fn hold(&mut self, reason: SuppressReason, cause: impl FnOnce() -> Option<Cause<FailureKind>>) {
        if self.plan.hold() {
            self.hedge.tell(|| HedgeEvent::Suppressed { reason, cause: cause() });
        }
    }

    /// Handles a failed or rejected attempt: starts another, if one may start.
    fn failed(&mut self, ended: &Ended) -> Result<Option<(u32, Instant)>, Over> {
        let then = ended.then(&self.hedge.settings.load().config);
        match then {
            Then::Over => Err(Over),
            Then::Next(kind) => Ok(self.start(HedgeCause::Failed { cause: ended.cause() }, Some(kind))),
            Then::Wait(reason) => {
                if reason == SuppressReason::PushedBack {
                    self.hedge.pushed_back(ended);
                }
                self.hold(reason, || Some(ended.cause()));
                Ok(None)
            }
        }
    }

    fn won(&self, ended: Ended, fork: Option<(u32, impl Fork)>) -> Won {
        match fork {
            None => Won::First(ended.outcome),
            Some((hedge, fork)) => {
                fork.keep();
                self.hedge.tell(|| HedgeEvent::Won { hedge });
                Won::Other(ended.outcome)
            }
        }
    }

    fn lost(&self, ended: Ended, fork: Option<(u32, impl Fork)>) -> Won {
        let attempts = self.plan.started();
        if attempts > 1 {
            self.hedge.tell(|| HedgeEvent::AllFailed { attempts, cause: ended.cause() });
        }
        match fork {
            None => Won::First(ended.outcome),
            Some((_, fork)) => {
                fork.keep();
                Won::Other(ended.outcome)
            }
        }
    }
}

fn is_success(ended: &Ended) -> bool {
    ended.outcome == Outcome::Judged(crate::outcome::Class::Success)
}

/// Makes the attempt.
#[inline]
fn attempt(hedge: &HedgeInner, fork: &mut impl Fork, cx: CallContext<'_>) -> impl Future<Output = Ended> + Send {
    async move {
        let outcome = fork.attempt(cx).await;
        let is_over = outcome.is_failure() || outcome == Outcome::Rejected;
        Ended { outcome, failure: if is_over { failure(hedge, fork, outcome) } else { None } }
    }
}

/// Returns the parts of a failed or rejected attempt, if they are needed.
#[cold]
fn failure(hedge: &HedgeInner, fork: &mut impl Fork, outcome: Outcome) -> Option<Box<FailureParts>> {
    let state = fork.call_state();
    let hint = if outcome.is_failure() { state.hint() } else { Hint::None };
    let needed = hint != Hint::None || hedge.tells();
    needed.then(|| Box::new(FailureParts { hint, cause: state.cause_of(outcome) }))
}

/// Creates the future of a hedged attempt.
fn beside<'f, F: Forks>(
    inner: &'f HedgeInner,
    forks: &'f F,
    hedge: u32,
    cx: CallContext<'f>,
) -> Pin<Box<dyn Future<Output = (Ended, impl Fork + use<'f, F>)> + Send + 'f>> {
    let mut fork = forks.next();
    Box::pin(async move {
        let ended = attempt(inner, &mut fork, cx.hedging(hedge).context()).await;
        (ended, fork)
    })
}
