//! Waiting for an instant, on each kind of clock.
use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use super::{
    Clock, Instant,
    clock::{Kind, tokio_instant, tokio_now},
    is_blocking, manual, thread,
};

pin_project_lite::pin_project! {
    /// A future that waits on a [`Clock`]: returned by [`Clock::sleep`] and [`Clock::sleep_until`].
    #[must_use = "futures do nothing unless polled"]
    pub struct Sleep {
        at: Instant,
        #[pin]
        wait: Wait,
    }
}

pin_project_lite::pin_project! {
    #[project = WaitProj]
    enum Wait {
        Tokio { #[pin] timer: tokio::time::Sleep },
        // A clock with time of its own that waits on tokio's timers.
        Borrowed { clock: Clock, #[pin] timer: tokio::time::Sleep },
        // A timer of a thread that blocks, for either of the clocks above.
        Thread { timer: thread::Timer },
        Manual { timer: manual::Timer },
        Foreign { timer: Pin<Box<dyn Future<Output = ()> + Send>> },
    }
}

#[inline]
#[expect(clippy::disallowed_methods, reason = "this is the one place that arms tokio's timers")]
fn timer(at: Instant) -> tokio::time::Sleep {
    tokio::time::sleep_until(tokio_instant(at))
}

/// Converts `at`, an instant of `clock`, to one of [`tokio_now`].
fn translated(clock: &Clock, at: Instant) -> Instant {
    tokio_now() + (at - clock.now())
}

impl Wait {
    /// Creates a wait for the thread that polls it first. [`Sleep::poll`] exchanges it if that is
    /// another one.
    fn new(clock: &Clock, at: Instant) -> Self {
        match &clock.0 {
            Kind::Manual(shared) => Self::Manual { timer: manual::Timer::new(shared.clone()) },
            Kind::Foreign(source) => Self::Foreign { timer: source.sleep_until(at) },
            _ if is_blocking() => Self::Thread { timer: thread::Timer::new(clock.clone()) },
            Kind::Tokio => Self::Tokio { timer: timer(at) },
            #[cfg(feature = "quanta")]
            Kind::Quanta(_) => Self::Borrowed { clock: clock.clone(), timer: timer(translated(clock, at)) },
        }
    }
}

impl Sleep {
    // Inlined for tokio's clock only: returned by a function, a timer is copied once more.
    #[inline]
    pub(super) fn new(clock: &Clock, at: Instant) -> Self {
        match &clock.0 {
            Kind::Tokio if !is_blocking() => Self { at, wait: Wait::Tokio { timer: timer(at) } },
            _ => Self::on_other(clock, at),
        }
    }

    #[inline(never)]
    fn on_other(clock: &Clock, at: Instant) -> Self {
        Self { at, wait: Wait::new(clock, at) }
    }

    /// Returns the instant at which the wait ends.
    pub fn deadline(&self) -> Instant {
        self.at
    }

    /// Continues a wait that was armed where it cannot fire now: on a runtime whose thread may be
    /// this one, which blocks; or on a thread that has left `block_on`.
    #[cold]
    #[inline(never)]
    fn moved(mut self: Pin<&mut Self>, clock: &Clock, cx: &mut Context<'_>) -> Poll<()> {
        let mut this = self.as_mut().project();
        let wait = Wait::new(clock, *this.at);
        this.wait.set(wait);
        self.poll(cx)
    }
}

impl Future for Sleep {
    type Output = ();

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.as_mut().project();
        // A timer may fire early: tokio's reach about two years, and a clock of another kind drifts against them.
        let clock = match this.wait.project() {
            WaitProj::Tokio { .. } if is_blocking() => Clock::tokio(),
            WaitProj::Borrowed { clock, .. } if is_blocking() => clock.clone(),
            WaitProj::Thread { timer } if !is_blocking() => timer.clock().clone(),
            WaitProj::Tokio { mut timer } => loop {
                ready!(timer.as_mut().poll(cx));
                if tokio_now() >= *this.at {
                    return Poll::Ready(());
                }
                timer.as_mut().reset(tokio_instant(*this.at));
            },
            WaitProj::Borrowed { clock, mut timer } => loop {
                ready!(timer.as_mut().poll(cx));
                if clock.now() >= *this.at {
                    return Poll::Ready(());
                }
                timer.as_mut().reset(tokio_instant(translated(clock, *this.at)));
            },
            WaitProj::Thread { timer } => return timer.poll(*this.at, cx),
            WaitProj::Manual { timer } => return timer.poll(*this.at, cx),
            WaitProj::Foreign { timer } => return timer.as_mut().poll(cx),
        };
        self.moved(&clock, cx)
    }
}
