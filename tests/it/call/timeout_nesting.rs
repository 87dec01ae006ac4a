//! Time-outs inside time-outs, at random: only one timer is armed for all of them, and it is the right one.
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
    Pipeline,
    call::AttemptInfo,
    time::{Clock, ManualClock},
    timeout::Timeout,
};

const MS: fn(u64) -> Duration = Duration::from_millis;

/// How the operation polls the inner pipeline.
#[derive(Debug, Clone, Copy)]
enum Way {
    Plain,
    /// With a new waker each time.
    NewWakers,
    /// In a set of futures beside another, which has a waker for each.
    InSet,
    /// First by itself, and after a time in such a set.
    MovedToSet(u64),
    /// Until a time; then it is dropped, and the work goes on without it.
    Dropped(u64),
    /// Until a time; then it is kept, but not polled any more.
    Kept(u64),
}

#[derive(Debug, Clone)]
struct Nest {
    outer: Vec<u64>,
    inner: Vec<u64>,
    /// When the inner pipeline begins, and how long the work takes from then on.
    begins: u64,
    work: Vec<u64>,
    way: Way,
    /// After how many polls the whole call gets another waker.
    same_waker: u64,
}

/// What comes, and when.
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
        let late = !self.inner.is_empty() && self.begins > 0 && self.begins >= outer;
        if late || ends > outer { (false, outer) } else { (inside.0, ends) }
    }

    fn run(&self) -> End {
        let (clock, time) = Clock::manual();
        let (outer, inner) = (pipeline(&self.outer, &clock), pipeline(&self.inner, &clock));
        let operation = |attempt: AttemptInfo| {
            let (inner, clock) = (&inner, &clock);
            async move {
                wait(clock, self.begins).await;
                let began = clock.now();
                let work = || async {
                    for step in &self.work {
                        wait(clock, *step).await;
                    }
                    Ok::<_, ()>(())
                };
                let call = Box::pin(inner.call_within(attempt, work).map(|result| result.is_ok()));
                let rest = clock.sleep_until(began + MS(self.work.iter().sum()));
                Ok::<bool, ()>(self.way.poll(call, rest.map(|()| true), clock).await)
            }
        };
        let start = time.now();
        let result = strictly(&time, self.same_waker, outer.call_with(operation));
        let end = u64::try_from((time.now() - start).as_millis()).unwrap();
        match result {
            Ok(value) => (value, end),
            Err(error) => {
                assert!(error.is_timed_out(), "{error:?}");
                (false, end)
            }
        }
    }
}

impl Way {
    async fn poll(
        self,
        mut call: Pin<Box<impl Future<Output = bool>>>,
        rest: impl Future<Output = bool>,
        clock: &Clock,
    ) -> bool {
        match self {
            Self::Plain => call.await,
            Self::NewWakers => {
                poll_fn(|cx| call.poll_unpin(&mut Context::from_waker(&Waker::from(Flag::before(cx.waker()))))).await
            }
            Self::InSet => in_set(call).await,
            Self::MovedToSet(after) => match until(&mut call, after, clock).await {
                Some(result) => result,
                None => in_set(call).await,
            },
            Self::Dropped(after) => match until(&mut call, after, clock).await {
                Some(result) => result,
                None => {
                    drop(call);
                    rest.await
                }
            },
            Self::Kept(after) => match until(&mut call, after, clock).await {
                Some(result) => result,
                None => {
                    let result = rest.await;
                    drop(call);
                    result
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

/// The call's result, if it comes until then.
async fn until(call: &mut (impl Future<Output = bool> + Unpin), after: u64, clock: &Clock) -> Option<bool> {
    let mut over = pin!(clock.sleep(MS(after)));
    poll_fn(|cx| match call.poll_unpin(cx) {
        Poll::Ready(result) => Poll::Ready(Some(result)),
        Poll::Pending => over.as_mut().poll(cx).map(|()| None),
    })
    .await
}

async fn in_set(call: impl Future<Output = bool>) -> bool {
    let set = FuturesUnordered::from_iter([call.left_future(), std::future::pending().right_future()]);
    pin!(set).next().await.unwrap()
}

fn pipeline(limits: &[u64], clock: &Clock) -> Pipeline<impl steadfast::call::Policy + use<>> {
    let limit = |at: usize| limits.get(at).map(|ms| Timeout::new(MS(*ms)).with_clock(clock));
    Pipeline::new().then(limit(0)).then(limit(1)).then(limit(2)).then(limit(3)).then(limit(4))
}

/// A waker that notes that it was called, and calls another.
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

/// Polls a call only when its last waker was called, and changes the waker after so many polls. Time goes from timer to timer.
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
    (limits, 0..6_usize, prop_oneof![Just(0), 0..30_u64], work, way, 1..4_u64).prop_map(
        |(mut outer, inside, begins, work, way, same_waker)| {
            let inner = outer.split_off(outer.len().saturating_sub(inside));
            Nest { outer, inner, begins, work, way, same_waker }
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
