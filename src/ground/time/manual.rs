//! The clock that a test moves by hand.
use std::{
    collections::BTreeMap,
    fmt,
    future::Future,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use super::{
    Clock, Instant,
    clock::{Kind, TimeSource},
};

/// The hand of a [`Clock`] that only moves when told: minutes of back-off in no time, the same in every run.
///
/// Clones move the same clock. [`advance`](Self::advance) wakes what is due, in order of due time;
/// [`block_on`](Self::block_on) drives a future and jumps to the next timer whenever it waits, so a test needs no runtime.
///
/// ```
/// use std::time::Duration;
/// use steadfast::time::Clock;
///
/// let (clock, hand) = Clock::manual();
/// let slept = hand.block_on(async {
///     let start = clock.now();
///     clock.sleep(Duration::from_secs(86_400)).await;
///     clock.now() - start
/// });
/// assert_eq!(slept, Duration::from_secs(86_400));
/// ```
#[derive(Clone)]
pub struct ManualClock(Arc<Shared>);

pub(super) struct Shared {
    now: AtomicU64,
    timers: Mutex<Timers>,
}

#[derive(Default)]
struct Timers {
    next_id: u64,
    due: BTreeMap<(Instant, u64), Waker>,
}

/// Where a manual clock starts: not at its origin, so that code which subtracts from `now` is seen to do so.
const START: Instant = Instant::from_nanos(1_000_000_000);

impl ManualClock {
    pub(super) fn new() -> Self {
        Self(Arc::new(Shared { now: AtomicU64::new(START.as_nanos()), timers: Mutex::default() }))
    }

    /// A clock that this hand moves.
    pub fn clock(&self) -> Clock {
        Clock(Kind::Manual(self.0.clone()))
    }

    /// A clock that this hand moves, and that runs at so many times its rate: one of a node whose quartz is off. They agree when the
    /// hand's clock starts.
    ///
    /// ```
    /// use std::time::Duration;
    /// use steadfast::time::Clock;
    ///
    /// let (clock, hand) = Clock::manual();
    /// let fast = hand.clock_at_rate(1.01);
    /// let (start, fast_start) = (clock.now(), fast.now());
    /// hand.advance(Duration::from_secs(100));
    /// assert_eq!((clock.now() - start).as_secs(), 100);
    /// assert_eq!((fast.now() - fast_start).as_secs(), 101);
    /// ```
    ///
    /// # Panics
    /// If the rate is not above zero.
    pub fn clock_at_rate(&self, rate: f64) -> Clock {
        assert!(rate > 0.0, "a clock's rate must be above zero, is {rate}");
        Clock::from_source(Skewed { hand: self.clone(), rate })
    }

    /// The time now.
    pub fn now(&self) -> Instant {
        self.0.now()
    }

    /// Moves the time forward by `by`, through every timer that falls due on the way.
    pub fn advance(&self, by: Duration) {
        self.advance_to(self.now() + by);
    }

    /// Moves the time forward to `to`, through every timer that falls due on the way; does nothing if `to` is past.
    pub fn advance_to(&self, to: Instant) {
        while self.fire_next(to) {}
        let _moves_under_the_lock = self.0.timers();
        self.0.now.fetch_max(to.as_nanos(), Ordering::SeqCst);
    }

    /// When the next timer falls due.
    pub fn next_timer(&self) -> Option<Instant> {
        self.0.timers().due.keys().next().map(|(at, _)| *at)
    }

    /// Runs `future` to its end on this thread, jumping to the next timer whenever it waits for time.
    ///
    /// # Panics
    /// If the future waits and no timer of this clock is left to wake it: in a test, a deadlock.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        let woken = Arc::new(Flag(AtomicBool::new(true)));
        let waker = Waker::from(woken.clone());
        let mut cx = Context::from_waker(&waker);
        let mut future = pin!(future);
        loop {
            while woken.0.swap(false, Ordering::SeqCst) {
                if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
                    return output;
                }
            }
            assert!(
                self.fire_next(Instant::FAR_FUTURE),
                "the future waits at {:?}, and no timer of this clock is left to wake it",
                self.now()
            );
        }
    }

    /// Jumps to the next timer due at `limit` or before and wakes it; false where there is none.
    fn fire_next(&self, limit: Instant) -> bool {
        let mut timers = self.0.timers();
        let Some(entry) = timers.due.first_entry() else { return false };
        let at = entry.key().0;
        if at > limit {
            return false;
        }
        let waker = entry.remove();
        self.0.now.fetch_max(at.as_nanos(), Ordering::SeqCst);
        drop(timers); // a waker may run code that asks this clock
        waker.wake();
        true
    }
}

/// A clock that is moved by hand, and runs at a rate of its own.
struct Skewed {
    hand: ManualClock,
    rate: f64,
}

impl TimeSource for Skewed {
    fn now(&self) -> Instant {
        let passed = (self.hand.now() - START).as_nanos() as f64;
        START + Duration::from_nanos((passed * self.rate) as u64)
    }

    fn sleep_until(&self, at: Instant) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let (clock, skewed) = (self.hand.clock(), Self { hand: self.hand.clone(), rate: self.rate });
        Box::pin(async move {
            loop {
                let left = at - skewed.now();
                if left.is_zero() {
                    return;
                }
                // Rounded up: it must not be early by its own count.
                let wait = Duration::from_nanos((left.as_nanos() as f64 / skewed.rate).ceil() as u64);
                clock.sleep(wait.max(Duration::from_nanos(1))).await;
            }
        })
    }
}

impl fmt::Debug for ManualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManualClock").field("now", &self.now()).field("timers", &self.0.timers().due.len()).finish()
    }
}

impl Shared {
    pub(super) fn now(&self) -> Instant {
        Instant::from_nanos(self.now.load(Ordering::SeqCst))
    }

    fn timers(&self) -> MutexGuard<'_, Timers> {
        self.timers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// One wait on a manual clock; leaves no trace in it when dropped.
pub(super) struct Timer {
    shared: Arc<Shared>,
    key: Option<(Instant, u64)>,
}

impl Timer {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, key: None }
    }

    pub(super) fn poll(&mut self, at: Instant, cx: &mut Context<'_>) -> Poll<()> {
        let mut timers = self.shared.timers();
        // The time moves under the same lock, so no wake-up falls between this look and the entry below.
        if self.shared.now() >= at {
            if let Some(key) = self.key.take() {
                timers.due.remove(&key);
            }
            return Poll::Ready(());
        }
        let key = *self.key.get_or_insert_with(|| {
            timers.next_id += 1;
            (at, timers.next_id)
        });
        timers.due.insert(key, cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.shared.timers().due.remove(&key);
        }
    }
}
