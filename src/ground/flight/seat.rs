//! A caller's place in a flight: the future of its result.
use std::{
    any::TypeId,
    collections::BTreeMap,
    future::Future,
    hash::Hash,
    pin::Pin,
    sync::{Arc, atomic::Ordering::Relaxed},
    task::{Context, Poll, Waker},
};

use futures_util::future::BoxFuture;

use super::{Flight, FlightResult, FlightState, Phase};
use crate::sync::MutexGuard;

/// A caller's place in a flight. As a future it returns the result, or `None` if the flight was
/// lost, for example because the work panicked in another task.
///
/// Dropping it leaves the flight. If it was the driver's, another caller is woken to take over. The
/// last one drops the work, or hands it to the callback for unattended flights.
pub(crate) struct Seat<K: Hash + Eq, T> {
    pub(super) flight: Arc<Flight<K, T>>,
    number: u64,
    /// The work, until its leader polls it for the first time.
    work: Option<BoxFuture<'static, T>>,
    /// `true` once it has returned its result, so that dropping it does nothing.
    over: bool,
    /// Number of polls of the work when this seat last read it.
    polls: u64,
}

impl<K: Hash + Eq, T> Seat<K, T> {
    /// Returns the creator's seat, which is counted already.
    pub(super) const fn first(flight: Arc<Flight<K, T>>) -> Self {
        Self::new(flight, 1, 0)
    }

    /// Adds a seat.
    pub(super) fn join(flight: Arc<Flight<K, T>>) -> Self {
        let mut state = flight.state.lock();
        let (number, polls) = (state.seat(), state.polls);
        drop(state);
        Self::new(flight, number, polls)
    }

    const fn new(flight: Arc<Flight<K, T>>, number: u64, polls: u64) -> Self {
        Self { flight, number, work: None, over: false, polls }
    }

    pub(super) fn with_work(mut self, work: BoxFuture<'static, T>) -> Self {
        self.work = Some(work);
        self
    }

    /// Returns `true` if this thread is polling the flight's work, so that the work would wait for
    /// itself.
    pub(crate) fn is_own(&self) -> bool {
        self.flight.polled_by.load(Relaxed) == thread_mark()
    }

    /// Adds a seat for a background task. Returns `None` if there is one already or the flight has
    /// ended.
    pub(crate) fn for_background(&self) -> Option<Self> {
        let mut state = self.flight.state.lock();
        if state.in_background || !matches!(state.phase, Phase::Under) {
            return None;
        }
        state.in_background = true;
        let number = state.seat();
        drop(state);
        Some(Self::new(self.flight.clone(), number, 0))
    }

    /// Marks this seat as the background task's.
    pub(crate) fn in_background(self) -> Self {
        self.flight.state.lock().in_background = true;
        self
    }

    /// Makes this seat the driver if the work was not polled since this seat's last call. The
    /// previous driver then waits like the others.
    ///
    /// A driver whose task is neither polled nor dropped would otherwise delay all other callers.
    pub(crate) fn take_over(&mut self) {
        let mut state = self.flight.state.lock();
        let stalled = state.polls == self.polls && state.driver != Some(self.number) && state.work.is_some();
        self.polls = state.polls;
        if !stalled {
            return;
        }
        let before = state.driver.replace(self.number).zip(state.driver_waker.take());
        let old = before.and_then(|(driver, waker)| state.waiting.get_or_insert_default().insert(driver, waker));
        drop(state);
        drop(old);
    }

    /// Returns whether the work is, or was, of this type.
    pub(crate) fn works_as(&self, work: TypeId) -> bool {
        self.flight.work_type == work
    }

    fn end(&mut self, result: Option<FlightResult<T>>) -> Poll<Option<FlightResult<T>>> {
        self.over = true;
        Poll::Ready(result)
    }
}

impl<T> FlightState<T> {
    fn seat(&mut self) -> u64 {
        self.seats += 1;
        self.seated += 1;
        self.seated
    }
}

/// Returns a number that no other thread has meanwhile: the address of a value of its own.
fn thread_mark() -> usize {
    thread_local!(static OWN: u8 = const { 0 });
    OWN.with(|own| std::ptr::from_ref(own).addr())
}

impl<K: Hash + Eq, T> Future for Seat<K, T> {
    type Output = Option<FlightResult<T>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<FlightResult<T>>> {
        let me = &mut *self;
        if let Some(work) = me.work.take() {
            return me.drive(work, cx);
        }
        let mut state = me.flight.state.lock();
        match &state.phase {
            Phase::Done(result) => {
                let result = result.clone();
                drop(state);
                return me.end(Some(FlightResult::Shared(result)));
            }
            Phase::Lost => {
                drop(state);
                return me.end(None);
            }
            Phase::Under => {}
        }
        let drives = state.driver.is_none_or(|driver| driver == me.number);
        let Some(work) = state.work.take_if(|_| drives) else {
            let old = state.wait(me.number, cx.waker());
            drop(state);
            drop(old);
            return Poll::Pending;
        };
        state.driver = Some(me.number);
        let waited = state.waiting.as_mut().and_then(|waiting| waiting.remove(&me.number));
        let old = (waited, state.driver_waker.take_if(|waker| !waker.will_wake(cx.waker())));
        drop(state);
        drop(old);
        me.drive(work, cx)
    }
}

impl<K: Hash + Eq, T> Seat<K, T> {
    /// Polls the work of the flight that this seat drives.
    fn drive(&mut self, mut work: BoxFuture<'static, T>, cx: &mut Context<'_>) -> Poll<Option<FlightResult<T>>> {
        let flight = &self.flight;
        flight.polled_by.store(thread_mark(), Relaxed);
        let mut guard = PollGuard { flight, safe: false };
        let polled = work.as_mut().poll(cx);
        guard.safe = true;
        drop(guard);
        let Poll::Ready(result) = polled else {
            let waker = cx.waker().clone();
            let mut state = flight.state.lock();
            state.work = Some(work);
            state.polls += 1;
            let old = state.driver_waker.replace(waker);
            drop(state);
            drop(old);
            return Poll::Pending;
        };
        // The work may have ended its flight itself.
        if !flight.closed.load(Relaxed) {
            flight.close(&mut flight.shard());
        }
        let mut state = flight.state.lock();
        // No seat can be added any more: the flight is in no table, and background seats are made from seats.
        let result = if state.seats == 1 {
            // Nobody waits.
            state.phase = Phase::Lost;
            drop(state);
            FlightResult::Own(result)
        } else {
            let result = Arc::new(result);
            end(state, Phase::Done(result.clone()));
            FlightResult::Shared(result)
        };
        self.end(Some(result))
    }
}

impl<T> FlightState<T> {
    /// Stores the waker of a waiting seat. Returns the previous one, to be dropped outside the
    /// lock.
    fn wait(&mut self, number: u64, waker: &Waker) -> Option<Waker> {
        let waiting = self.waiting.get_or_insert_default();
        match waiting.get(&number) {
            Some(old) if old.will_wake(waker) => None,
            _ => waiting.insert(number, waker.clone()),
        }
    }

    fn first_waiting(&self) -> Option<&Waker> {
        self.waiting.as_ref()?.values().next()
    }
}

/// Ends a flight and wakes all waiting callers.
fn end<T>(mut state: MutexGuard<'_, FlightState<T>>, phase: Phase<T>) {
    state.phase = phase;
    let (waiting, work, driver) = (state.waiting.take(), state.work.take(), state.driver_waker.take());
    drop(state);
    waiting.into_iter().flat_map(BTreeMap::into_values).for_each(Waker::wake);
    drop((work, driver));
}

/// A guard while the work is polled: if the work panics, the flight is lost.
struct PollGuard<'a, K: Hash + Eq, T> {
    flight: &'a Arc<Flight<K, T>>,
    safe: bool,
}

impl<K: Hash + Eq, T> Drop for PollGuard<'_, K, T> {
    #[inline]
    fn drop(&mut self) {
        self.flight.polled_by.store(0, Relaxed);
        if !self.safe {
            self.flight.close(&mut self.flight.shard());
            end(self.flight.state.lock(), Phase::Lost);
        }
    }
}

/// The action to take outside the locks after a seat has left its flight.
enum AfterLeave<T> {
    Nothing,
    /// Wake another caller, which takes over.
    Wake(Waker),
    /// Drop the work, as no caller is left.
    Drop(Option<BoxFuture<'static, T>>),
    Finish(u64),
}

impl<K: Hash + Eq, T> Seat<K, T> {
    fn leave(&self) -> AfterLeave<T> {
        // The shard's lock comes first: a joining caller must not find a flight that has no seat left.
        let mut shard = self.flight.shard();
        let mut state = self.flight.state.lock();
        state.seats -= 1;
        let mut old = (state.waiting.as_mut().and_then(|waiting| waiting.remove(&self.number)), None);
        if state.driver == Some(self.number) {
            state.driver = None;
            old.1 = state.driver_waker.take();
        }
        let left = match state.phase {
            Phase::Done(_) | Phase::Lost => AfterLeave::Nothing,
            // The creator was dropped before it set the work, and no other caller can set it.
            Phase::Under if state.work.is_none() && state.driver.is_none() => {
                self.flight.close(&mut shard);
                drop(shard);
                end(state, Phase::Lost);
                return AfterLeave::Nothing;
            }
            Phase::Under if state.seats > 0 => match (state.driver, state.first_waiting()) {
                // The woken seat keeps waiting until it is polled: if it leaves before, the next one is woken.
                (None, Some(waker)) => AfterLeave::Wake(waker.clone()),
                // The others were not polled yet: the first that is polled drives.
                _ => AfterLeave::Nothing,
            },
            Phase::Under if self.flight.flights.0.unattended.is_some() && !state.in_background => {
                state.in_background = true;
                AfterLeave::Finish(state.seat())
            }
            Phase::Under => {
                self.flight.close(&mut shard);
                state.phase = Phase::Lost;
                AfterLeave::Drop(state.work.take())
            }
        };
        drop(state);
        drop(shard);
        drop(old);
        left
    }
}

impl<K: Hash + Eq, T> Drop for Seat<K, T> {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        match self.leave() {
            AfterLeave::Nothing => {}
            AfterLeave::Wake(waker) => waker.wake(),
            AfterLeave::Drop(work) => drop(work),
            AfterLeave::Finish(number) => {
                let seat = Self::new(self.flight.clone(), number, 0);
                match &self.flight.flights.0.unattended {
                    Some(unattended) => unattended(seat),
                    None => drop(seat),
                }
            }
        }
    }
}
