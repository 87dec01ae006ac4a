//! Futures on a thread that is not async.
//
// A thread in `block_on` is not woken through `Thread::unpark`: an operation may park and unpark
// its thread for purposes of its own, and would take the token. Each call of `block_on` waits on a
// condition variable of its own instead. Its flag is set and read under the same lock as the wait,
// so no wake-up falls between the look and the wait.
//
// Timers belong to the thread, not to one call, so that a nested call also fires those of the
// calls around it, which may be waits of other threads (of a shared execution).
use std::{
    cell::{Cell, RefCell},
    future::Future,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use super::{ManualClock, clock::system_now, thread};
use crate::sync::{Condvar, Mutex};

/// The use of a thread by the innermost [`block_on`].
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    /// The thread is not in [`block_on`].
    Other,
    Blocks,
    /// It has armed timers, which are handed over at the end.
    BlocksWithTimers,
}

thread_local! {
    // Without a destructor, so that a read is a single load.
    static USE: Cell<Use> = const { Cell::new(Use::Other) };
    /// The clock that jumps when this thread would wait.
    static DRIVER: RefCell<Option<ManualClock>> = const { RefCell::new(None) };
}

/// Returns `true` if this thread is in [`block_on`]: timers that it polls are its own.
#[inline]
pub(crate) fn is_blocking() -> bool {
    USE.get() != Use::Other
}

/// Records that the innermost [`block_on`] has armed a timer.
pub(super) fn arms_timer() {
    USE.set(Use::BlocksWithTimers);
}

/// Longest wait without a look at the time: a system's wait may not take any duration.
const LONGEST: Duration = Duration::from_secs(86_400);

/// Runs `future` to its end on this thread, which waits meanwhile. It needs no runtime.
///
/// It serves everything in this crate that is async where the caller is not: a permit
/// (`block_on(limiter.acquire())`), a cached value, a lease. Calls through policies have
/// [`Pipeline::call_blocking`](crate::Pipeline::call_blocking).
///
/// ```
/// use std::time::Duration;
/// use steadfast::{
///     throttling::{Quota, RateLimiter},
///     time::block_on,
/// };
///
/// let limiter = RateLimiter::new(Quota::new(2, Duration::from_millis(20))).unwrap();
/// for _ in 0..3 {
///     // The third permit comes after about 10 ms, in which this thread waits.
///     block_on(limiter.acquire());
/// }
/// ```
///
/// # Time
///
/// Inside, waits on [`Clock::tokio`](super::Clock::tokio) are timers of this thread, whether a
/// runtime is present or not. [`Clock::sleep`](super::Clock::sleep) itself must also be called
/// inside: write `block_on(async { clock.sleep(time).await })`. A future that outlives the call,
/// because other callers share it, continues where it is polled next.
///
/// Other futures of tokio work inside if a runtime is entered and runs elsewhere. On a thread of a
/// runtime this function blocks that thread, as all blocking code does: go through
/// `tokio::task::spawn_blocking`. While it blocks the only thread of a current-thread runtime, that
/// runtime's timers and tasks stand still. A runtime's own `block_on` fires no timers of this
/// thread: call it in the operation of a [call that blocks](crate::Pipeline::call_blocking), which
/// counts as outside, or around this function, not in `future`.
///
/// A test lets time pass by [`ManualClock::run_blocking`], or moves a manual clock from another
/// thread.
///
/// # Panics
/// If it waits on tokio's clock while a test has paused that, as nothing could move it.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let _blocks = Blocks::enter();
    let mut future = pin!(future);
    // A future that is ready at once needs no waker, which would be allocated. One that is not is polled
    // again before the first wait, with the waker that counts from then on.
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => wait_for(future),
    }
}

/// As [`block_on`], with one poll before the first wait: a test may count polls, and `tokio::join!`
/// takes turns by them.
pub(super) fn block_on_polled_once<F: Future>(future: F) -> F::Output {
    let _blocks = Blocks::enter();
    wait_for(pin!(future))
}

#[cold]
fn wait_for<F: Future>(future: Pin<&mut F>) -> F::Output {
    let signal = Arc::new(Signal::default());
    let waker = Waker::from(signal.clone());
    let mut cx = Context::from_waker(&waker);
    // Inside a task of tokio the budget of its resources would never be refilled.
    let mut future = pin!(tokio::task::unconstrained(future));
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
        signal.wait();
    }
}

/// Marks this thread as one in [`block_on`].
struct Blocks {
    before: Use,
}

impl Blocks {
    #[inline]
    fn enter() -> Self {
        Self { before: USE.replace(Use::Blocks) }
    }
}

impl Drop for Blocks {
    #[inline]
    fn drop(&mut self) {
        if USE.replace(self.before) == Use::BlocksWithTimers {
            thread::hand_over();
        }
    }
}

/// Runs `work`, which blocks, as outside of [`block_on`]: it may wait in a way of its own, such as
/// in a runtime, which never fires this thread's timers.
#[inline]
pub(crate) fn outside<T>(work: impl FnOnce() -> T) -> T {
    struct Restore(Use);

    impl Drop for Restore {
        #[inline]
        fn drop(&mut self) {
            USE.set(self.0);
        }
    }
    let _restore = Restore(USE.replace(Use::Other));
    work()
}

/// The waker of one call of [`block_on`].
#[derive(Default)]
struct Signal {
    woken: Mutex<bool>,
    changed: Condvar,
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.set();
    }
}

impl Signal {
    fn set(&self) {
        *self.woken.lock() = true;
        self.changed.notify_one();
    }

    /// Waits until woken. Fires this thread's timers meanwhile.
    fn wait(&self) {
        loop {
            let next = thread::fire_due();
            if self.take() {
                return;
            }
            if drive(next.is_some()) {
                continue;
            }
            let limit = next.map_or(LONGEST, |at| (at - system_now()).min(LONGEST));
            if self.wait_at_most(limit) {
                return;
            }
        }
    }

    fn take(&self) -> bool {
        std::mem::take(&mut *self.woken.lock())
    }

    /// Waits until woken, for about `limit` at most. Returns `true` if it was woken.
    fn wait_at_most(&self, limit: Duration) -> bool {
        let mut woken = self.woken.lock();
        if !*woken {
            woken = self.changed.wait_timeout(woken, limit);
        }
        std::mem::take(&mut *woken)
    }
}

/// Jumps to the next timer of the clock that a test drives on this thread. Returns `false` if there
/// is none, and the thread has to wait.
fn drive(has_timers: bool) -> bool {
    let Some(driver) = DRIVER.with_borrow(Clone::clone) else { return false };
    let fired = driver.fire_next();
    assert!(fired || has_timers, "the future waits at {:?}, and this clock has no timer left to wake it", driver.now());
    fired
}

/// Waits for the answer of a backend's own thread, which works in real time.
///
/// If a test drives a manual clock on this thread, that stands still meanwhile, and the answer
/// comes at the first poll, or with `yields` at the second: a run is the same each time, however
/// busy the machine is.
///
/// # Cancel safety
/// Same as that of `answer`.
#[allow(dead_code, reason = "used by a backend")]
pub(crate) async fn from_thread<F: Future>(answer: F, yields: bool) -> F::Output {
    let is_driven = || DRIVER.with_borrow(Option::is_some);
    if yields && is_driven() {
        crate::race::yield_now().await;
    }
    if is_driven() {
        let _stands_still = replace_driver(None);
        return block_on(answer);
    }
    answer.await
}

/// Lets `driver` jump whenever this thread would wait, until the guard is dropped.
pub(super) fn drive_by(driver: &ManualClock) -> impl Drop + use<> {
    replace_driver(Some(driver.clone()))
}

fn replace_driver(driver: Option<ManualClock>) -> impl Drop + use<> {
    struct Restore(Option<ManualClock>);

    impl Drop for Restore {
        fn drop(&mut self) {
            DRIVER.set(self.0.take());
        }
    }
    Restore(DRIVER.replace(driver))
}

#[cfg(all(test, steadfast_loom))]
mod loom_tests {
    use super::*;

    /// Two threads wake a third between its polls: it sees each change that came before a wake-up.
    #[test]
    fn loom_no_wake_up_of_a_blocked_thread_is_lost() {
        loom::model(|| {
            let signal = Arc::new(Signal::default());
            let done = Arc::new(crate::sync::AtomicU32::new(0));
            let wakers: Vec<_> = (0..2)
                .map(|_| {
                    let (signal, done) = (signal.clone(), done.clone());
                    loom::thread::spawn(move || {
                        done.fetch_add(1, crate::sync::Ordering::Relaxed);
                        signal.set();
                    })
                })
                .collect();
            while done.load(crate::sync::Ordering::Relaxed) < 2 {
                let mut woken = signal.woken.lock();
                while !std::mem::take(&mut *woken) {
                    woken = signal.changed.wait(woken);
                }
            }
            wakers.into_iter().for_each(|waker| waker.join().unwrap());
        });
    }
}
