//! A caller's place in a flight: the future of its result.
use std::{
    any::TypeId,
    future::Future,
    hash::Hash,
    pin::Pin,
    sync::{Arc, atomic::Ordering::Relaxed},
    task::{Context, Poll, Waker},
};

use futures_util::future::BoxFuture;

use super::{Flight, FlightResult, FlightState, Flights, Phase};
use crate::sync::MutexGuard;

/// A caller's place in a flight. As a future it returns the result, or `None` if the flight was
/// lost, for example because the work panicked in another task.
///
/// Dropping it leaves the flight. If it was the driver's, another caller is woken to take over. The
/// last one drops the work, or hands it to the callback for unattended flights.
pub(crate) struct Seat<K: Hash + Eq, T> {
    pub(super) flights: Flights<K, T>,
    pub(super) flight: Arc<Flight<K, T>>,
    number: u64,
    /// `true` once it has returned its result, so that dropping it does nothing.
    over: bool,
    /// Number of polls of the work when this seat last read it.
    polls: u64,
}

impl<K: Hash + Eq, T> Seat<K, T> {
    /// Returns the creator's seat, which is counted already.
    pub(super) fn first(flights: Flights<K, T>, flight: Arc<Flight<K, T>>) -> Self {
        Self { flights, flight, number: 1, over: false, polls: 0 }
    }

    /// Adds a seat.
    pub(super) fn join(flights: Flights<K, T>, flight: Arc<Flight<K, T>>) -> Self {
        let mut state = flight.state.lock();
        let (number, polls) = (state.seat(), state.polls);
        drop(state);
        Self { flights, flight, number, over: false, polls }
    }

    /// Returns a number that all seats of this flight share, and no other flight has while one of
    /// them lives.
    pub(crate) fn flight_id(&self) -> usize {
        Arc::as_ptr(&self.flight).addr()
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
        Some(Self { flights: self.flights.clone(), flight: self.flight.clone(), number, over: false, polls: 0 })
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
        let old = before.and_then(|(driver, waker)| state.waiting.insert(driver, waker));
        drop(state);
        drop(old);
    }

    /// Returns whether the work is, or was, of this type.
    pub(crate) fn works_as(&self, work: TypeId) -> bool {
        self.flight.state.lock().work_type == Some(work)
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

impl<K: Hash + Eq, T> Future for Seat<K, T> {
    type Output = Option<FlightResult<T>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<FlightResult<T>>> {
        let me = &mut *self;
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
        let Some(mut work) = state.work.take_if(|_| drives) else {
            let old = state.wait(me.number, cx.waker());
            drop(state);
            drop(old);
            return Poll::Pending;
        };
        state.driver = Some(me.number);
        state.polls += 1;
        // A map that never had an entry is left alone, here and at the end: most flights have one caller.
        let waited = if state.waiting.is_empty() { None } else { state.waiting.remove(&me.number) };
        let old = (waited, state.driver_waker.take_if(|waker| !waker.will_wake(cx.waker())));
        drop(state);
        drop(old);
        let mut guard = PanicGuard { flight: &*me.flight, flights: &me.flights, arc: &me.flight, safe: false };
        let polled = work.as_mut().poll(cx);
        guard.safe = true;
        let Poll::Ready(result) = polled else {
            let waker = cx.waker().clone();
            let mut state = guard.flight.state.lock();
            state.work = Some(work);
            let old = state.driver_waker.replace(waker);
            drop(state);
            drop(old);
            return Poll::Pending;
        };
        drop(guard);
        // The work may have ended its flight itself.
        if !me.flight.closed.load(Relaxed) {
            me.flights.close(&mut me.flights.shard(me.flight.hash), &me.flight);
        }
        let state = me.flight.state.lock();
        // No seat can be added any more: the flight is in no table, and background seats are made from seats.
        let result = if state.seats == 1 {
            end(state, Phase::Lost);
            FlightResult::Own(result)
        } else {
            let result = Arc::new(result);
            end(state, Phase::Done(result.clone()));
            FlightResult::Shared(result)
        };
        me.end(Some(result))
    }
}

impl<T> FlightState<T> {
    /// Stores the waker of a waiting seat. Returns the previous one, to be dropped outside the
    /// lock.
    fn wait(&mut self, number: u64, waker: &Waker) -> Option<Waker> {
        match self.waiting.get(&number) {
            Some(old) if old.will_wake(waker) => None,
            _ => self.waiting.insert(number, waker.clone()),
        }
    }
}

/// Ends a flight and wakes all waiting callers.
fn end<T>(mut state: MutexGuard<'_, FlightState<T>>, phase: Phase<T>) {
    state.phase = phase;
    let waiting = if state.waiting.is_empty() { None } else { Some(std::mem::take(&mut state.waiting)) };
    let (work, driver) = (state.work.take(), state.driver_waker.take());
    drop(state);
    if let Some(waiting) = waiting {
        waiting.into_values().for_each(Waker::wake);
    }
    drop((work, driver));
}

/// A guard while the work is polled: if the work panics, the flight is lost.
struct PanicGuard<'a, K: Hash + Eq, T> {
    flight: &'a Flight<K, T>,
    flights: &'a Flights<K, T>,
    arc: &'a Arc<Flight<K, T>>,
    safe: bool,
}

impl<K: Hash + Eq, T> Drop for PanicGuard<'_, K, T> {
    fn drop(&mut self) {
        if !self.safe {
            self.flights.close(&mut self.flights.shard(self.flight.hash), self.arc);
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
        let mut shard = self.flights.shard(self.flight.hash);
        let mut state = self.flight.state.lock();
        state.seats -= 1;
        let mut old = (state.waiting.remove(&self.number), None);
        if state.driver == Some(self.number) {
            state.driver = None;
            old.1 = state.driver_waker.take();
        }
        let left = match state.phase {
            Phase::Done(_) | Phase::Lost => AfterLeave::Nothing,
            // The creator was dropped before it set the work, and no other caller can set it.
            Phase::Under if state.work.is_none() && state.driver.is_none() => {
                self.flights.close(&mut shard, &self.flight);
                drop(shard);
                end(state, Phase::Lost);
                return AfterLeave::Nothing;
            }
            Phase::Under if state.seats > 0 => match (state.driver, state.waiting.values().next()) {
                // The woken seat keeps waiting until it is polled: if it leaves before, the next one is woken.
                (None, Some(waker)) => AfterLeave::Wake(waker.clone()),
                // The others were not polled yet: the first that is polled drives.
                _ => AfterLeave::Nothing,
            },
            Phase::Under if self.flights.0.unattended.is_some() && !state.in_background => {
                state.in_background = true;
                AfterLeave::Finish(state.seat())
            }
            Phase::Under => {
                self.flights.close(&mut shard, &self.flight);
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
                let (flights, flight) = (self.flights.clone(), self.flight.clone());
                let seat = Self { flights, flight, number, over: false, polls: 0 };
                match &self.flights.0.unattended {
                    Some(unattended) => unattended(seat),
                    None => drop(seat),
                }
            }
        }
    }
}
