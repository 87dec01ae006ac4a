//! Random nestings of time-outs: one timer is armed for all of them, and it is the right one.
use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use futures::{FutureExt, StreamExt, stream::FuturesUnordered};
use proptest::prelude::*;
use steadfast::{
    Outcome, Pipeline, PolicyKind, Reason, Rejected,
    call::{Attempt, AttemptInfo, CallContext, Policy},
    time::{Clock, ManualClock},
    timeout::Timeout,
};

const MS: fn(u64) -> Duration = Duration::from_millis;

/// The way in which the inner time-outs are polled.
#[derive(Debug, Clone, Copy)]
enum Way {
    Plain,
    /// With a new waker each time.
    NewWakers,
    /// In a set of futures beside another, which has a waker for each.
    InSet,
    /// First by itself, and after a time in such a set.
    MovedToSet(u64),
    /// Until a time. Then they are dropped, and the call waits without them.
    Dropped(u64),
    /// Until a time. Then they are kept, but not polled any more.
    Kept(u64),
}

#[derive(Debug, Clone)]
struct Nest {
    outer: Vec<u64>,
    inner: Vec<u64>,
    /// Time before the inner time-outs begin, and the steps of the work from then on.
    begins: u64,
    work: Vec<u64>,
    way: Way,
    /// The inner time-outs are in a pipeline of their own, in the operation of the outer one.
    in_operation: bool,
    /// Number of polls after which the whole call gets another waker.
    same_waker: u64,
}

/// Success, or a time-out, and the time of it.
type End = (bool, u64);

impl Nest {
    fn expected(&self) -> End {
        let nearest = |limits: &[u64]| limits.iter().copied().min().unwrap_or(u64::MAX);
        let work: u64 = self.work.iter().sum();
        let inside = match (work, nearest(&self.inner), self.way) {
            (work, limit, Way::Dropped(until) | Way::Kept(until)) if work.min(limit) > until => (true, work),
            (work, limit, _) if work <= limit => (true, work),
            (_, limit, _) => (false, limit),
        };
        let (outer, ends) = (nearest(&self.outer), self.begins + inside.1);
        // A time-out does not run a call whose time is over before it begins.
        let is_checked = self.in_operation && !self.inner.is_empty();
        let late = is_checked && self.begins > 0 && self.begins >= outer;
        if late || ends > outer { (false, outer) } else { (inside.0, ends) }
    }

    fn run(&self) -> End {
        let (clock, time) = Clock::manual();
        let start = time.now();
        let work = || async {
            for step in &self.work {
                wait(&clock, *step).await;
            }
            Ok::<_, ()>(true)
        };
        let between = Between { nest: self, clock: &clock };
        let result = if self.in_operation {
            let inner = limits(Pipeline::new().then(between), &self.inner, &clock);
            let operation = |attempt: AttemptInfo| {
                inner.call_within(attempt, work).map(|result| result.or_else(|error| Ok(!error.is_timed_out())))
            };
            strictly(&time, self.same_waker, limits(Pipeline::new(), &self.outer, &clock).call_with(operation))
        } else {
            let all = limits(limits(Pipeline::new(), &self.outer, &clock).then(between), &self.inner, &clock);
            strictly(&time, self.same_waker, all.call(work))
        };
        let end = u64::try_from((time.now() - start).as_millis()).unwrap();
        match result {
            Ok(value) => (value, end),
            Err(error) => (!error.is_timed_out(), end),
        }
    }
}

/// A policy between the outer and the inner time-outs. It polls the inner ones in its own way, and
/// rejects the call at the end of the work if it gave them up.
struct Between<'a> {
    nest: &'a Nest,
    clock: &'a Clock,
}

impl Policy for Between<'_> {
    async fn around<A: Attempt>(&self, mut inner: A, cx: CallContext<'_>) -> Outcome {
        let Self { nest, clock } = *self;
        wait(clock, nest.begins).await;
        let rest = clock.sleep_until(clock.now() + MS(nest.work.iter().sum()));
        match nest.way.poll(Box::pin(inner.attempt(cx)), rest, clock).await {
            Some(outcome) => outcome,
            None => inner.refuse(Rejected::new(PolicyKind::Custom("between"), Reason::Custom("given up"))),
        }
    }
}

impl Way {
    /// Returns the output of the call, or `None` if it was given up.
    async fn poll<T: Send>(
        self,
        mut call: Pin<Box<impl Future<Output = T> + Send>>,
        rest: impl Future<Output = ()> + Send,
        clock: &Clock,
    ) -> Option<T> {
        match self {
            Self::Plain => Some(call.await),
            Self::NewWakers => Some(
                poll_fn(|cx| call.poll_unpin(&mut Context::from_waker(&Waker::from(Flag::before(cx.waker()))))).await,
            ),
            Self::InSet => Some(in_set(call).await),
            Self::MovedToSet(after) => match until(&mut call, after, clock).await {
                Some(output) => Some(output),
                None => Some(in_set(call).await),
            },
            Self::Dropped(after) => match until(&mut call, after, clock).await {
                Some(output) => Some(output),
                None => {
                    drop(call);
                    rest.await;
                    None
                }
            },
            Self::Kept(after) => match until(&mut call, after, clock).await {
                Some(output) => Some(output),
                None => {
                    rest.await;
                    drop(call);
                    None
                }
            },
        }
    }
}

async fn wait(clock: &Clock, ms: u64) {
    if ms > 0 {
        clock.sleep(MS(ms)).await;
    }
}

/// Returns the output of the call, or `None` if it is not ready within this time.
async fn until<T>(call: &mut (impl Future<Output = T> + Unpin), after: u64, clock: &Clock) -> Option<T> {
    let mut over = pin!(clock.sleep(MS(after)));
    poll_fn(|cx| match call.poll_unpin(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => over.as_mut().poll(cx).map(|()| None),
    })
    .await
}

async fn in_set<T>(call: impl Future<Output = T>) -> T {
    let set = FuturesUnordered::from_iter([call.left_future(), std::future::pending().right_future()]);
    pin!(set).next().await.unwrap()
}

/// Adds a time-out for each limit.
fn limits<P: Policy>(pipeline: Pipeline<P>, limits: &[u64], clock: &Clock) -> Pipeline<impl Policy + use<P>> {
    let limit = |at: usize| limits.get(at).map(|ms| Timeout::builder(MS(*ms)).clock(clock).build());
    pipeline.then(limit(0)).then(limit(1)).then(limit(2)).then(limit(3)).then(limit(4))
}

/// A waker that records its call, and calls another.
struct Flag(AtomicBool, Option<Waker>);

impl Flag {
    fn before(waker: &Waker) -> Arc<Self> {
        Arc::new(Self(AtomicBool::new(false), Some(waker.clone())))
    }
}

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, SeqCst);
        if let Some(next) = &self.1 {
            next.wake_by_ref();
        }
    }
}

/// Polls a call only when its last waker was called, and changes the waker after a number of polls.
/// The time advances from timer to timer.
fn strictly<F: Future>(time: &ManualClock, same_waker: u64, call: F) -> F::Output {
    let mut call = pin!(call);
    let mut flag = Arc::new(Flag(AtomicBool::new(true), None));
    let mut waker = Waker::from(flag.clone());
    for polls in 1.. {
        flag.0.store(false, SeqCst);
        if let Poll::Ready(output) = call.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        while !flag.0.load(SeqCst) {
            time.advance_to(time.next_timer().expect("a timer that wakes the call"));
        }
        if polls % same_waker == 0 {
            flag = Arc::new(Flag(AtomicBool::new(true), None));
            waker = Waker::from(flag.clone());
        }
    }
    unreachable!()
}

fn nests() -> impl Strategy<Value = Nest> {
    let way = prop_oneof![
        2 => Just(Way::Plain),
        1 => Just(Way::NewWakers),
        1 => Just(Way::InSet),
        2 => (1..40_u64).prop_map(Way::MovedToSet),
        2 => (1..40_u64).prop_map(Way::Dropped),
        2 => (1..40_u64).prop_map(Way::Kept),
    ];
    let limits = prop::collection::vec(1..60_u64, 1..6);
    let work = prop::collection::vec(0..25_u64, 0..4);
    (limits, 0..6_usize, prop_oneof![Just(0), 0..30_u64], work, way, any::<bool>(), 1..4_u64).prop_map(
        |(mut outer, inside, begins, work, way, in_operation, same_waker)| {
            let inner = outer.split_off(outer.len().saturating_sub(inside));
            Nest { outer, inner, begins, work, way, in_operation, same_waker }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5000))]

    #[test]
    fn nested_time_outs_end_a_call_at_the_nearest_deadline_however_it_is_polled(nest in nests()) {
        prop_assert_eq!(nest.run(), nest.expected());
    }
}
