//! One early timer for the time limits of a handle's requests.
//!
//! A timer that is due before all others of a tokio runtime wakes the thread that waits for I/O, so
//! that it waits for less. For a lone request this costs up to half of its time: the thread that
//! was woken also takes over the request's tasks. While a timer is pending that is due earlier than
//! any limit of a request, none of them wakes a thread.
use std::{
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};

use crate::{spawn::Spawner, time::Clock};

/// No timer is pending.
const IDLE: u8 = 0;
/// A timer is pending, and no request began since the last.
const PENDING: u8 = 1;
/// A timer is pending, and a request began since the last.
const USED: u8 = 2;

/// Keeps a timer pending while requests with a time limit are made.
pub(crate) struct EarlyTimer {
    state: Arc<AtomicU8>,
    clock: Clock,
    /// Less than the limits of requests.
    period: Duration,
}

impl EarlyTimer {
    pub(crate) fn new(clock: &Clock, limit: Duration) -> Self {
        Self { state: Arc::default(), clock: clock.clone(), period: limit / 4 }
    }

    /// Notes that a request begins. The first one spawns a task, which ends within two periods of
    /// the last one.
    pub(crate) fn note_request(&self) {
        if self.state.load(Ordering::Relaxed) == USED || self.state.swap(USED, Ordering::Relaxed) != IDLE {
            return;
        }
        let (state, clock, period) = (self.state.clone(), self.clock.clone(), self.period);
        Spawner::Tokio.spawn(async move {
            loop {
                clock.sleep(period).await;
                if state.compare_exchange(PENDING, IDLE, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                    return;
                }
                state.store(PENDING, Ordering::Relaxed);
            }
        });
    }
}

#[cfg(all(test, not(steadfast_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_timer_is_pending_while_requests_are_made_and_none_afterwards() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (clock, time) = Clock::manual();
        let timer = EarlyTimer::new(&clock, Duration::from_secs(4));
        let settle = || runtime.block_on(async { crate::race::yield_now().await });
        let pass = |seconds| {
            time.advance(Duration::from_secs(seconds));
            settle();
        };
        runtime.block_on(async { timer.note_request() });
        settle();
        for _ in 0..3 {
            let due = time.next_timer().expect("a timer before any limit");
            assert!(due <= time.now() + Duration::from_secs(1));
            runtime.block_on(async { timer.note_request() });
            pass(1);
        }
        pass(1);
        assert_eq!(time.next_timer(), None);
        runtime.block_on(async { timer.note_request() });
        settle();
        assert!(time.next_timer().is_some(), "the next request begins anew");
    }
}
