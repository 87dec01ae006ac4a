//! Waiting for an instant, on whichever clock.
use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use super::{
    Clock, Instant,
    clock::Kind,
    manual,
};

pin_project_lite::pin_project! {
    /// A wait on a [`Clock`]: made by [`Clock::sleep`] and [`Clock::sleep_until`].
    #[must_use = "futures do nothing unless polled"]
    pub struct Sleep {
        clock: Clock,
        at: Instant,
        #[pin]
        wait: Wait,
    }
}

pin_project_lite::pin_project! {
    #[project = WaitProj]
    enum Wait {
        Tokio { #[pin] timer: tokio::time::Sleep },
        Manual { timer: manual::Timer },
        Foreign { timer: Pin<Box<dyn Future<Output = ()> + Send>> },
    }
}

impl Sleep {
    pub(super) fn new(clock: &Clock, at: Instant) -> Self {
        let wait = match &clock.0 {
            Kind::Manual(shared) => Wait::Manual { timer: manual::Timer::new(shared.clone()) },
            Kind::Foreign(source) => Wait::Foreign { timer: source.sleep_until(at) },
            _ => {
                let deadline = clock.tokio_deadline(at);
                #[expect(clippy::disallowed_methods, reason = "this is the one place that arms tokio's timers")]
                let timer = tokio::time::sleep_until(deadline);
                Wait::Tokio { timer }
            }
        };
        Self { clock: clock.clone(), at, wait }
    }

    /// The instant that it waits for.
    pub fn deadline(&self) -> Instant {
        self.at
    }
}

impl Future for Sleep {
    type Output = ();
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        match this.wait.project() {
            WaitProj::Manual { timer } => timer.poll(*this.at, cx),
            WaitProj::Foreign { timer } => timer.as_mut().poll(cx),
            WaitProj::Tokio { mut timer } => loop {
                ready!(timer.as_mut().poll(cx));
                // The timer may fire early by this clock: its reach is bounded, and a time-stamp counter drifts.
                if this.clock.now() >= *this.at {
                    return Poll::Ready(());
                }
                timer.as_mut().reset(this.clock.tokio_deadline(*this.at));
            },
        }
    }
}
