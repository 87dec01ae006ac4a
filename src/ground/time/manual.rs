//! The clock that a test moves.
use std::{
    collections::BTreeMap,
    fmt,
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use super::{
    Clock, Instant, Timestamp,
    block_on::{block_on_polled_once, drive_by},
    clock::{Kind, TimeSource},
};
use crate::sync::{Mutex, MutexGuard};

/// The driver of a [`Clock`] that moves only on command: minutes of back-off take no time, and
/// every run is the same.
///
/// Clones move the same clock. [`advance`](Self::advance) wakes due timers in order of their due
/// time. [`block_on`](Self::block_on) drives a future and jumps to the next timer whenever the
/// future waits, so a test needs no runtime.
///
/// ```
/// use std::time::Duration;
/// use steadfast::time::Clock;
///
/// let (clock, time) = Clock::manual();
/// let slept = time.block_on(async {
///     let start = clock.now();
///     clock.sleep(Duration::from_secs(86_400)).await;
///     clock.now() - start
/// });
/// assert_eq!(slept, Duration::from_secs(86_400));
/// ```
#[derive(Clone)]
pub struct ManualClock(Arc<Shared>);

// `now` is written under the lock of `timers` only, and read without it. A timer looks at `now` under the lock before it
// enters itself, so no move of the time falls between the look and the entry: either the timer sees the new time, or the
// mover sees the timer. `SeqCst` is simplicity: this clock is for tests.
pub(super) struct Shared {
    now: AtomicU64,
    timers: Mutex<Timers>,
}

#[derive(Default)]
struct Timers {
    next_id: u64,
    /// Milliseconds from `now` to the wall time: a difference of two `u64` with either sign.
    wall_ahead: i128,
    due: BTreeMap<(Instant, u64), Waker>,
}

/// The first time of a manual clock. It is not the origin, so that tests show code that subtracts
/// from `now`.
const START: Instant = Instant::from_nanos(1_000_000_000);

impl ManualClock {
    pub(super) fn new() -> Self {
        Self(Arc::new(Shared { now: AtomicU64::new(START.as_nanos()), timers: Mutex::default() }))
    }

    /// Returns a clock that this driver moves.
    pub fn clock(&self) -> Clock {
        Clock(Kind::Manual(self.0.clone()))
    }

    /// Returns a clock that this driver moves, and that runs at `rate` times the driver's rate: a
    /// node with an inaccurate oscillator. Both clocks read the same time at the driver's start.
    ///
    /// ```
    /// use std::time::Duration;
    /// use steadfast::time::Clock;
    ///
    /// let (clock, time) = Clock::manual();
    /// let fast = time.clock_at_rate(1.01);
    /// let (start, fast_start) = (clock.now(), fast.now());
    /// time.advance(Duration::from_secs(100));
    /// assert_eq!((clock.now() - start).as_secs(), 100);
    /// assert_eq!((fast.now() - fast_start).as_secs(), 101);
    /// ```
    ///
    /// # Panics
    /// If the rate is not above zero.
    pub fn clock_at_rate(&self, rate: f64) -> Clock {
        assert!(rate > 0.0, "a clock's rate must be above zero, is {rate}");
        Clock::from_source(Skewed { driver: self.clone(), rate })
    }

    /// Returns the current time.
    pub fn now(&self) -> Instant {
        self.0.now()
    }

    /// Sets the wall time of the clock, which moves with the clock from then on. It may jump
    /// forwards and back, as a system's does; [`now`](Self::now) stays as it is. A new manual
    /// clock's wall time is one second after 1970-01-01 UTC.
    pub fn set_wall(&self, wall: Timestamp) {
        let mut timers = self.0.timers();
        timers.wall_ahead = i128::from(wall.as_millis()) - millis(self.now());
    }

    /// Moves the time forward by `by` and fires each timer that falls due on the way.
    pub fn advance(&self, by: Duration) {
        self.advance_to(self.now() + by);
    }

    /// Moves the time forward to `to` and fires each timer that falls due on the way; does nothing
    /// if `to` is past.
    pub fn advance_to(&self, to: Instant) {
        loop {
            let mut timers = self.0.timers();
            let Some(waker) = self.0.take_due(&mut timers, to) else {
                // Under the lock of the last look: a timer that another thread enters now sees the new time.
                self.0.now.fetch_max(to.as_nanos(), Ordering::SeqCst);
                return;
            };
            drop(timers); // a waker may run code that reads this clock
            waker.wake();
        }
    }

    /// Returns the time at which the next timer falls due, or `None` without timers.
    pub fn next_timer(&self) -> Option<Instant> {
        self.0.timers().due.keys().next().map(|(at, _)| *at)
    }

    /// Runs `future` to its end on this thread, and jumps to the next timer whenever it waits for
    /// time. While it waits for a thread of the SQLite backend, the time stands still.
    ///
    /// # Panics
    /// If the future waits and this clock has no timer left to wake it: in a test, a deadlock.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.run_blocking(|| block_on_polled_once(future))
    }

    /// Runs `work`, which blocks, on this thread, and jumps to the next timer whenever the thread
    /// would wait in [`block_on`](super::block_on()) or
    /// [`Pipeline::call_blocking`](crate::Pipeline::call_blocking): a test of code that is not
    /// async.
    ///
    /// ```
    /// use std::{io, time::Duration};
    /// use steadfast::{CallError, call::idempotent, retry::{Retry, RetryConfig}, time::Clock};
    ///
    /// // The code under test, which is not async.
    /// fn load(
    ///     retry: &Retry,
    ///     read: impl FnMut() -> io::Result<u32>,
    /// ) -> Result<u32, CallError<io::Error>> {
    ///     retry.call_blocking(idempotent(read))
    /// }
    ///
    /// let (clock, time) = Clock::manual();
    /// let retry = Retry::builder(RetryConfig::default()).clock(&clock).build().unwrap();
    /// let start = clock.now();
    /// let mut answers = [Err(io::Error::other("busy")), Ok(7)].into_iter();
    /// let loaded = time.run_blocking(|| load(&retry, || answers.next().unwrap()));
    /// assert_eq!(loaded.unwrap(), 7);
    /// assert!(clock.now() > start); // the delay of the retry, for which the test did not wait
    /// ```
    ///
    /// If other threads take part, do not let the clock jump: move it with
    /// [`advance`](Self::advance), which wakes threads that block, too.
    ///
    /// # Panics
    /// If the thread would wait and this clock has no timer left to wake it: in a test, a deadlock.
    pub fn run_blocking<T>(&self, work: impl FnOnce() -> T) -> T {
        let _driven = drive_by(self);
        work()
    }

    /// Jumps to the next timer and wakes it; returns `false` if there is none.
    pub(super) fn fire_next(&self) -> bool {
        let due = self.0.take_due(&mut self.0.timers(), Instant::FAR_FUTURE);
        due.map(Waker::wake).is_some()
    }
}

/// A clock that a driver moves, with a rate of its own.
struct Skewed {
    driver: ManualClock,
    rate: f64,
}

impl TimeSource for Skewed {
    fn now(&self) -> Instant {
        let passed = (self.driver.now() - START).as_nanos() as f64;
        START + Duration::from_nanos((passed * self.rate) as u64)
    }

    fn sleep_until(&self, at: Instant) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let (clock, skewed) = (self.driver.clock(), Self { driver: self.driver.clone(), rate: self.rate });
        Box::pin(async move {
            loop {
                let left = at - skewed.now();
                if left.is_zero() {
                    return;
                }
                // Rounded up, so that the wait is not early by the skewed clock.
                let wait = Duration::from_nanos((left.as_nanos() as f64 / skewed.rate).ceil() as u64);
                clock.sleep(wait.max(Duration::from_nanos(1))).await;
            }
        })
    }

    fn wall(&self) -> Timestamp {
        self.driver.0.wall_at(self.now())
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

    pub(super) fn wall(&self) -> Timestamp {
        self.wall_at(self.now())
    }

    /// Returns the wall time at `now`; saturates at 1970 and at the end of `u64`.
    fn wall_at(&self, now: Instant) -> Timestamp {
        let wall = (millis(now) + self.timers().wall_ahead).clamp(0, u64::MAX.into());
        Timestamp::from_millis(wall as u64)
    }

    /// Moves the time to the next timer due at `limit` or before, and takes its waker.
    fn take_due(&self, timers: &mut Timers, limit: Instant) -> Option<Waker> {
        let entry = timers.due.first_entry()?;
        let at = entry.key().0;
        if at > limit {
            return None;
        }
        let waker = entry.remove();
        self.now.fetch_max(at.as_nanos(), Ordering::SeqCst);
        Some(waker)
    }

    fn timers(&self) -> MutexGuard<'_, Timers> {
        self.timers.lock()
    }
}

fn millis(at: Instant) -> i128 {
    i128::from(at.as_nanos() / 1_000_000)
}

/// One wait on a manual clock; removes its entry on drop.
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
        // The time moves under the same lock, so no wake-up is lost between this look and the entry below.
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
