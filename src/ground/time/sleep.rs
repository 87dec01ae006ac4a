//! Waiting for an instant, on each kind of clock.
use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use super::{
    Clock, Instant,
    clock::{Kind, tokio_instant, tokio_now},
    manual,
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

impl Sleep {
    // Inlined for tokio's clock only: returned by a function, a timer is copied once more.
    #[inline]
    pub(super) fn new(clock: &Clock, at: Instant) -> Self {
        match &clock.0 {
            Kind::Tokio => Self { at, wait: Wait::Tokio { timer: timer(at) } },
            _ => Self::on_other(clock, at),
        }
    }

    #[inline(never)]
    fn on_other(clock: &Clock, at: Instant) -> Self {
        let wait = match &clock.0 {
            Kind::Tokio => Wait::Tokio { timer: timer(at) },
            #[cfg(feature = "quanta")]
            Kind::Quanta(_) => Wait::Borrowed { clock: clock.clone(), timer: timer(translated(clock, at)) },
            Kind::Manual(shared) => Wait::Manual { timer: manual::Timer::new(shared.clone()) },
            Kind::Foreign(source) => Wait::Foreign { timer: source.sleep_until(at) },
        };
        Self { at, wait }
    }

    /// Returns the instant at which the wait ends.
    pub fn deadline(&self) -> Instant {
        self.at
    }
}

impl Future for Sleep {
    type Output = ();

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        // A timer may fire early: tokio's reach about two years, and a clock of another kind drifts against them.
        match this.wait.project() {
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
            WaitProj::Manual { timer } => timer.poll(*this.at, cx),
            WaitProj::Foreign { timer } => timer.as_mut().poll(cx),
        }
    }
}
